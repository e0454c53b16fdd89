/* The built-in engine: Whisper and language models, float32 activations, greedy.

   engine PROGRAM WEIGHTS FEATURES THREADS: prints the chosen tokens, one a line; everything else goes to the probe's
   sink where one is set. Leaves out audio and text: it is fed features (a language model none) and gives tokens. */
#include "firstbad.h"

#include "pool.h"
#include "runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_features(const char *path, View into) {
    FILE *file = fopen(path, "rb");
    if (!file || into.dtype != FB_F32 || fread(into.at, 4, (size_t)into.count, file) != (size_t)into.count ||
        fgetc(file) != EOF)
        fail("the features do not fill the input of the plan", path);
    fclose(file);
}

/* feeds `count` tokens and gives back the one that the step chose */
static int64_t decode(Runtime *r, const Step *step, const char *name, const int64_t *tokens, int64_t count) {
    int64_t chosen;
    r->t = count;
    r->first = r->n;
    r->n += count;
    View fed = view_of(r, &step->input);
    if (fed.dtype != FB_I64 || fed.count != count) fail("the input of the step does not hold its tokens", name);
    memcpy(fed.at, tokens, (size_t)count * sizeof *tokens);
    run_step(r, step, name);
    View result = view_of(r, &step->result);
    if (result.dtype != FB_I64 || result.count != 1) fail("the step gives no token", name);
    memcpy(&chosen, result.at, sizeof chosen);
    return chosen;
}

int main(int argc, char **argv) {
    if (argc != 5) fail("usage", "engine PROGRAM WEIGHTS FEATURES THREADS");
    Program program = read_program(argv[1]);
    Runtime runtime = start_runtime(&program, argv[2]);
    pool_start(atoi(argv[4]));
    const Step *prefill = &program.step[program.steps - 2];
    if (prefill != program.step) {
        read_features(argv[3], view_of(&runtime, &program.step[0].input));
        run_step(&runtime, &program.step[0], "encode");
    }
    if (program.max_tokens > 0 && program.prompts > 0) {
        int64_t token = decode(&runtime, prefill, "prefill", program.prompt, program.prompts);
        for (int64_t chosen = 0;;) {
            char name[32];
            printf("%" PRId64 "\n", token);
            fflush(stdout);
            FB_TOKEN(token);
            snprintf(name, sizeof name, "decode.%" PRId64, chosen++);
            if (token == program.eos || chosen >= program.max_tokens || runtime.n >= program.positions) break;
            token = decode(&runtime, prefill + 1, name, &token, 1);
        }
    }
    pool_stop();
    stop_runtime(&runtime);
    return 0;
}
