/* The shim for ggml: preloaded into any program that computes with a shared ggml, it records every node of every graph.

   The scheduler is asked to stop after each node (its eval callback), so a node's sources are read while they hold what
   the node will read, and its result before anybody reuses the buffer. Struct ggml_tensor is read as it has been laid
   out since 2024; `fb_abi` checks that with the library's own accessors and refuses any other layout. What a graph looks
   like (op, parameters, sources, views) goes out as JSON in a value called `ggml.graph`; what is computed, as everything
   else under firstbad.h. Leaves out GPUs (tensors that the processor cannot address are not recorded) and all naming:
   that is probes/ggml.py's. */
#define _GNU_SOURCE
#define FIRSTBAD_IMPLEMENTATION
#include "../include/firstbad.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum { F32 = 0, F16 = 1, I8 = 24, I32 = 26, I64 = 27, F64 = 28, BF16 = 30 };
enum { OP_NONE = 0, FLAG_INPUT = 1, USAGE_WEIGHTS = 1, OBJECT = 32 };

typedef struct tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op;
    int32_t op_params[16];
    int32_t flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
} tensor;

typedef bool (*eval_callback)(tensor *t, bool ask, void *user);

/* ---- the library's own functions: whichever loaded object defines them, however it was loaded ---- */

typedef struct {
    const char *name;
    void *found;
} search;

static int look_in(struct dl_phdr_info *info, size_t size, void *out) {
    search *s = (search *)out;
    Dl_info own, other;
    void *handle, *at;
    (void)size;
    handle = dlopen(info->dlpi_name[0] ? info->dlpi_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return 0;
    at = dlsym(handle, s->name);
    dlclose(handle);
    if (!at || !dladdr(at, &other) || !dladdr((void *)(uintptr_t)look_in, &own) || other.dli_fbase == own.dli_fbase) return 0;
    s->found = at;
    return 1;
}

static void *find(const char *name) {
    search s;
    s.name = name;
    s.found = NULL;
    dl_iterate_phdr(look_in, &s);
    return s.found;
}

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    static int have_##name(void) { \
        if (!real_##name) *(void **)&real_##name = find(#name); \
        return real_##name != NULL; \
    }

REAL(int, ggml_backend_sched_graph_compute, void *, void *)
REAL(int, ggml_backend_sched_graph_compute_async, void *, void *)
REAL(void, ggml_backend_sched_set_eval_callback, void *, eval_callback, void *)
REAL(void, ggml_backend_sched_synchronize, void *)
REAL(void, ggml_backend_buffer_free, void *)
REAL(void *, ggml_backend_buffer_get_base, void *)
REAL(size_t, ggml_backend_buffer_get_size, void *)
REAL(bool, ggml_backend_buffer_is_host, void *)
REAL(int, ggml_backend_buffer_get_usage, void *)
REAL(size_t, ggml_tensor_overhead, void)
REAL(const char *, ggml_get_name, const tensor *)
REAL(void *, ggml_get_data, const tensor *)
REAL(const char *, ggml_op_desc, const tensor *)
REAL(const char *, ggml_type_name, int)
REAL(int, ggml_graph_n_nodes, void *)
REAL(tensor *, ggml_graph_node, void *, int)
REAL(size_t, ggml_type_size, int)
REAL(int64_t, ggml_blck_size, int)
REAL(const char *, ggml_version, void)
REAL(int, whisper_full_n_segments, void *)
REAL(int, whisper_full_n_tokens, void *, int)
REAL(int, whisper_full_get_token_id, void *, int, int)
REAL(const char *, whisper_full_get_segment_text, void *, int)

/* ---- text that grows ---- */

static char *text;
static uint64_t text_count, text_room;

static void say(const char *format, ...) {
    for (;;) {
        va_list list;
        int n;
        va_start(list, format);
        n = vsnprintf(text ? text + text_count : NULL, (size_t)(text_room - text_count), format, list);
        va_end(list);
        if (n < 0) return;
        if (text_count + (uint64_t)n < text_room) {
            text_count += (uint64_t)n;
            return;
        }
        text = (char *)fb_grow(text, &text_room, text_count + (uint64_t)n + 1, 1);
    }
}

static void say_quoted(const char *s, size_t most) {
    size_t i;
    say("\"");
    for (i = 0; i < most && s[i]; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 32 || c > 126 || c == '"' || c == '\\') say("\\u%04x", c);
        else say("%c", c);
    }
    say("\"");
}

/* ---- which tensor is which: pointer → number, anew for the nodes of each graph; leaves for the whole run ---- */

typedef struct {
    const void *key, *data;
    int number, graph;
} slot;

typedef struct {
    slot *at;
    uint64_t room;
    int count;
} table;

static table nodes, leaves;
static int graph_number = -1, depth_guard, refused;

static slot *slot_of(table *t, const void *key) {
    uint64_t mask = t->room - 1, i = ((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (t->at[i].key && t->at[i].key != key) i = (i + 1) & mask;
    return &t->at[i];
}

static void room_for(table *t, int more) {
    uint64_t want = 1024, i;
    slot *old = t->at;
    uint64_t had = t->room;
    while (want < 3 * (uint64_t)(t->count + more)) want *= 2;
    if (want <= t->room) return;
    t->at = (slot *)calloc((size_t)want, sizeof(slot));
    if (!t->at) fb_die("out of memory", "the shim's tables");
    t->room = want;
    for (i = 0; i < had; i++)
        if (old[i].key) *slot_of(t, old[i].key) = old[i];
    free(old);
}

static int node_of(const tensor *t) {
    slot *s = nodes.room ? slot_of(&nodes, t) : NULL;
    return s && s->key && s->graph == graph_number ? s->number : -1;
}

/* ---- a tensor as firstbad.h sees it ---- */

typedef struct {
    int dtype, rank;
    int64_t shape[FB_MAX_RANK], strides[FB_MAX_RANK];
} layout;

static int is_view(const tensor *t) {
    static const char *words[] = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"};
    const char *op = real_ggml_op_desc(t);
    size_t i;
    for (i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(op, words[i])) return 1;
    return 0;
}

static int on_host(const tensor *t) {
    const tensor *root = t->view_src ? t->view_src : t;
    void *buffer = t->buffer ? t->buffer : root->buffer;
    return t->data && (!buffer || real_ggml_backend_buffer_is_host(buffer));
}

static layout layout_of(const tensor *t) {
    layout l;
    int rank = 4, i, block = (int)real_ggml_blck_size(t->type);
    memset(&l, 0, sizeof l);
    switch (t->type) {
    case F32: l.dtype = FB_F32; break;
    case F16: l.dtype = FB_F16; break;
    case BF16: l.dtype = FB_BF16; break;
    case F64: l.dtype = FB_F64; break;
    case I8: l.dtype = FB_I8; break;
    case I32: l.dtype = FB_I32; break;
    case I64: l.dtype = FB_I64; break;
    default: l.dtype = FB_U8; /* blocks, as their bytes */
    }
    while (rank > 1 && t->ne[rank - 1] == 1) rank--;
    l.rank = rank;
    for (i = 0; i < rank; i++) {
        l.shape[rank - 1 - i] = t->ne[i];
        l.strides[rank - 1 - i] = (int64_t)t->nb[i];
    }
    if (l.dtype == FB_U8) {
        l.shape[rank - 1] = t->ne[0] / block * (int64_t)real_ggml_type_size(t->type);
        l.strides[rank - 1] = 1;
    }
    return l;
}

static int64_t elements(const tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

/* ---- what a graph looks like ---- */

/* a tensor that no node of this graph makes: announced once, with its content unless it is a weight */
static int leaf_of(tensor *t) {
    slot *s;
    int weight, i;
    char name[80];
    room_for(&leaves, 1);
    s = slot_of(&leaves, t);
    if (s->key && s->data == t->data && !(t->flags & FLAG_INPUT)) return s->number;
    if (!s->key) {
        s->key = t;
        s->number = leaves.count++;
    } else if (s->data != t->data) {
        s->number = leaves.count++;
    } else if (s->graph == graph_number) {
        return s->number;
    }
    s->data = t->data;
    s->graph = graph_number;
    weight = t->buffer && have_ggml_backend_buffer_get_usage() && real_ggml_backend_buffer_get_usage(t->buffer) == USAGE_WEIGHTS;
    snprintf(name, sizeof name, "leaf.%d", s->number);
    say("%s{\"leaf\":%d,\"weight\":%s,\"input\":%s,\"type\":\"%s\",\"name\":", text[text_count - 1] == '[' ? "" : ",",
        s->number, weight ? "true" : "false", t->flags & FLAG_INPUT ? "true" : "false", real_ggml_type_name(t->type));
    say_quoted(t->name, sizeof t->name);
    say(",\"ne\":[");
    for (i = 0; i < 4; i++) say("%s%" PRId64, i ? "," : "", t->ne[i]);
    say("]}");
    /* a cache is known by what is written into it; its bytes that nobody wrote are reported where they are read */
    if ((weight || t->flags & FLAG_INPUT) && t->op == OP_NONE && on_host(t) && elements(t)) {
        layout l = layout_of(t);
        fb_write(weight ? 2 : 1, name, t->data, l.dtype, l.rank, l.shape, l.strides);
    }
    return s->number;
}

/* the nodes of a chain of sources that this graph does not make, down to its leaf */
static void leaves_of(tensor *t) {
    if (node_of(t) >= 0) return;
    if (t->view_src && node_of(t->view_src) < 0) leaf_of(t->view_src);
    else if (!t->view_src) leaf_of(t);
}

static void say_reference(tensor *t) {
    int node = node_of(t);
    if (node >= 0) say("%d", node);
    else if (!t->view_src) say("%d", -1 - leaf_of(t));
    else say("[%d,%zu]", node_of(t->view_src) >= 0 ? node_of(t->view_src) : -1 - leaf_of(t->view_src), t->view_offs);
}

static void say_node(tensor *t, int number) {
    int i;
    say("%s{\"op\":\"%s\",\"type\":\"%s\",\"name\":", number ? "," : "", real_ggml_op_desc(t), real_ggml_type_name(t->type));
    say_quoted(t->name, sizeof t->name);
    say(",\"ne\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "],\"nb\":[%zu,%zu,%zu,%zu],\"params\":[", t->ne[0], t->ne[1],
        t->ne[2], t->ne[3], t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
    for (i = 0; i < 16; i++) say("%s%" PRId32, i ? "," : "", t->op_params[i]);
    say("],\"src\":[");
    for (i = 0; i < 10 && t->src[i]; i++) {
        if (i) say(",");
        say_reference(t->src[i]);
    }
    say("]");
    if (t->view_src) {
        say(",\"view\":");
        if (node_of(t->view_src) >= 0) say("%d", node_of(t->view_src));
        else say("%d", -1 - leaf_of(t->view_src));
        say(",\"offset\":%zu", t->view_offs);
    }
    say("}");
}

static void announce(void *graph) {
    int count = real_ggml_graph_n_nodes(graph), i, j;
    int64_t size;
    char step[32];
    graph_number++;
    snprintf(step, sizeof step, "graph.%d", graph_number);
    fb_step(step);
    free(nodes.at);
    memset(&nodes, 0, sizeof nodes);
    room_for(&nodes, count);
    for (i = 0; i < count; i++) {
        slot *s = slot_of(&nodes, real_ggml_graph_node(graph, i));
        s->key = real_ggml_graph_node(graph, i);
        s->number = i;
        s->graph = graph_number;
        nodes.count++;
    }
    text_count = 0;
    say("{\"leaves\":[");
    for (i = 0; i < count; i++) {
        tensor *t = real_ggml_graph_node(graph, i);
        for (j = 0; j < 10 && t->src[j]; j++) leaves_of(t->src[j]);
        if (t->view_src) leaves_of(t->view_src);
    }
    say("],\"nodes\":[");
    for (i = 0; i < count; i++) say_node(real_ggml_graph_node(graph, i), i);
    say("]}");
    size = (int64_t)text_count;
    fb_write(1, "ggml.graph", text, FB_U8, 1, &size, NULL);
    fb_free(text, text_room);
}

/* ---- node by node ---- */

static void before(tensor *t) {
    int i, node;
    char slot_name[8], meant[24];
    /* one source is where it writes, and is not read */
    int target = !strcmp(real_ggml_op_desc(t), "CPY") ? 1 : !strcmp(real_ggml_op_desc(t), "SET_ROWS") ? 2 : -1;
    fb_op(real_ggml_op_desc(t), "", "", node_of(t));
    for (i = 0; i < 10 && t->src[i]; i++) {
        tensor *s = t->src[i];
        layout l = layout_of(s);
        if (!on_host(s) || !elements(s) || i == target) continue;
        node = node_of(s->view_src ? s->view_src : s);
        meant[0] = 0;
        if (node >= 0 && !is_view(s->view_src ? s->view_src : s)) snprintf(meant, sizeof meant, "n%d", node);
        snprintf(slot_name, sizeof slot_name, "src%d", i);
        fb_read(slot_name, meant, s->data, l.dtype, l.rank, l.shape, l.strides);
    }
}

static void after(tensor *t) {
    layout l = layout_of(t);
    char name[24];
    snprintf(name, sizeof name, "n%d", node_of(t));
    if (on_host(t)) fb_write(0, name, t->data, l.dtype, l.rank, l.shape, l.strides);
    fb_op_end();
}

typedef struct {
    void *sched;
    eval_callback call;
    void *user;
    int asked;
} chained;

static chained theirs[64];
static int n_theirs;

static chained *of_sched(void *sched) {
    int i;
    for (i = 0; i < n_theirs; i++)
        if (theirs[i].sched == sched) return &theirs[i];
    if (n_theirs == 64) return &theirs[63];
    memset(&theirs[n_theirs], 0, sizeof *theirs);
    theirs[n_theirs].sched = sched;
    return &theirs[n_theirs++];
}

static bool at_node(tensor *t, bool ask, void *user) {
    chained *c = (chained *)user;
    bool go_on = true;
    if (ask) {
        c->asked = c->call && c->call(t, true, c->user);
        if (node_of(t) < 0 || is_view(t) || !elements(t)) return c->asked;
        before(t);
        return true;
    }
    if (!(node_of(t) < 0 || is_view(t) || !elements(t))) after(t);
    if (c->asked) go_on = c->call(t, false, c->user);
    return go_on;
}

static int abi_holds(void *graph) {
    tensor *t;
    if (!(have_ggml_tensor_overhead() && have_ggml_get_name() && have_ggml_get_data() && have_ggml_op_desc() &&
          have_ggml_type_name() && have_ggml_graph_n_nodes() && have_ggml_graph_node() && have_ggml_type_size() &&
          have_ggml_blck_size() && have_ggml_backend_buffer_is_host() && have_ggml_backend_sched_set_eval_callback()))
        return 0;
    if (real_ggml_tensor_overhead() != sizeof(tensor) + OBJECT || real_ggml_graph_n_nodes(graph) < 1) return 0;
    t = real_ggml_graph_node(graph, 0);
    return real_ggml_get_name(t) == t->name && real_ggml_get_data(t) == t->data;
}

/* FIRSTBAD_GGML=late: as a naive dumper does, every node is read when the whole graph has been computed */
static int late(void) {
    const char *mode = getenv("FIRSTBAD_GGML");
    return mode && !strcmp(mode, "late");
}

static int begin(void *sched, void *graph) {
    char size[96];
    const char *where = getenv("FIRSTBAD_SINK");
    if (!where || !*where || depth_guard || refused) return 0;
    if (!abi_holds(graph)) {
        refused = 1;
        snprintf(size, sizeof size, "%zu bytes a tensor", have_ggml_tensor_overhead() ? real_ggml_tensor_overhead() : (size_t)0);
        fb_text("ggml.refused", size);
        return 0;
    }
    if (graph_number < 0) fb_text("ggml.version", have_ggml_version() ? real_ggml_version() : "");
    depth_guard++;
    announce(graph);
    if (!late()) real_ggml_backend_sched_set_eval_callback(sched, at_node, of_sched(sched));
    return 1;
}

static void end(void *sched, void *graph) {
    chained *c = of_sched(sched);
    int i;
    if (late()) {
        if (have_ggml_backend_sched_synchronize()) real_ggml_backend_sched_synchronize(sched);
        for (i = 0; i < real_ggml_graph_n_nodes(graph); i++) {
            tensor *t = real_ggml_graph_node(graph, i);
            if (is_view(t) || !elements(t)) continue;
            before(t);
            after(t);
        }
    }
    real_ggml_backend_sched_set_eval_callback(sched, c->call, c->user);
    depth_guard--;
}

/* ---- what is interposed ---- */

int ggml_backend_sched_graph_compute(void *sched, void *graph) {
    int status, ours;
    if (!have_ggml_backend_sched_graph_compute()) return -1;
    ours = begin(sched, graph);
    status = real_ggml_backend_sched_graph_compute(sched, graph);
    if (ours) end(sched, graph);
    return status;
}

int ggml_backend_sched_graph_compute_async(void *sched, void *graph) {
    int status, ours;
    if (!have_ggml_backend_sched_graph_compute_async()) return -1;
    ours = begin(sched, graph);
    status = real_ggml_backend_sched_graph_compute_async(sched, graph);
    if (ours) end(sched, graph);
    return status;
}

void ggml_backend_sched_set_eval_callback(void *sched, eval_callback call, void *user) {
    chained *c = of_sched(sched);
    if (!have_ggml_backend_sched_set_eval_callback()) return;
    c->call = call;
    c->user = user;
    real_ggml_backend_sched_set_eval_callback(sched, call, user);
}

void ggml_backend_buffer_free(void *buffer) {
    if (buffer && graph_number >= 0 && have_ggml_backend_buffer_get_base() && have_ggml_backend_buffer_get_size()) {
        const char *base = (const char *)real_ggml_backend_buffer_get_base(buffer);
        size_t size = real_ggml_backend_buffer_get_size(buffer);
        uint64_t i;
        fb_free(base, size);
        for (i = 0; i < leaves.room; i++) /* another tensor may be made at the same place */
            if ((const char *)leaves.at[i].data >= base && (const char *)leaves.at[i].data < base + size)
                leaves.at[i].data = NULL;
    }
    if (have_ggml_backend_buffer_free()) real_ggml_backend_buffer_free(buffer);
}

/* every caller of whisper.cpp asks this before it reads the answer */
int whisper_full_n_segments(void *context) {
    static int told = -1;
    int segments, i, j;
    if (!have_whisper_full_n_segments()) return 0;
    segments = real_whisper_full_n_segments(context);
    if (graph_number < 0 || told == graph_number || !have_whisper_full_n_tokens() || !have_whisper_full_get_token_id() ||
        !have_whisper_full_get_segment_text())
        return segments;
    told = graph_number;
    text_count = 0;
    say(" ");
    for (i = 0; i < segments; i++)
        for (j = 0; j < real_whisper_full_n_tokens(context, i); j++) say("%d ", real_whisper_full_get_token_id(context, i, j));
    fb_text("ggml.tokens", text);
    text_count = 0;
    say(" ");
    for (i = 0; i < segments; i++) say("%s", real_whisper_full_get_segment_text(context, i));
    fb_text("text", text);
    return segments;
}
