/* The recording side of firstbad.h: the table of what was written, the records on the wire (probes/wire.md), and the
   calls. Part of the implementation: included by firstbad.h under FIRSTBAD_IMPLEMENTATION, never by itself. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int fb_live = -1; /* unknown until the first call has looked at the environment */

#if defined(__GNUC__)
#define FB_THREAD __thread
static volatile int fb_lock_word;
static void fb_lock(void) {
    while (__sync_lock_test_and_set(&fb_lock_word, 1)) sched_yield();
}
static void fb_unlock(void) { __sync_lock_release(&fb_lock_word); }
#else /* one thread at a time, then */
#define FB_THREAD
static void fb_lock(void) {}
static void fb_unlock(void) {}
#endif

enum { FB_REC_HELLO = 1, FB_REC_STEP, FB_REC_OP, FB_REC_ATTR, FB_REC_READ, FB_REC_WRITE, FB_REC_END, FB_REC_REPLACED,
       FB_REC_TOKEN, FB_REC_TEXT, FB_REC_CLOSE, FB_REC_WEIGHT_CHANGED, FB_REC_AS_READ };
enum { FB_STATE_OK = 0, FB_STATE_CHANGED, FB_STATE_UNWRITTEN, FB_STATE_SUPERSEDED };

typedef struct {
    uint64_t id, name, hash; /* name: its hash */
    int kind, checked;
    fb_view view;
} fb_record;

typedef struct {
    uint64_t record;
    uint32_t piece;
} fb_change;

typedef struct {
    fb_change *at;
    uint64_t count, room;
} fb_changes;

static int fb_sink = -1, fb_reply = -1, fb_weights_always, fb_closed;
static char *fb_want, *fb_replace, *fb_stop;
static char fb_step_name[64] = "";
static uint64_t fb_last_id, fb_last_op, fb_swept = 2048;
static fb_record *fb_table; /* all that was written and may still be read, in the order of writing */
static uint64_t fb_count, fb_room;
static fb_bytes fb_head;
static FB_THREAD uint64_t fb_current; /* op of this thread; 0: none */
static FB_THREAD uint64_t fb_start, fb_end; /* of its kernel: after the last read, before the first write */

/* ---- the wire: u32 type, u32 bytes of head, u64 bytes of data, head, data; one writev a record ---- */

static void fb_put(const void *p, uint64_t n) {
    fb_head.at = (unsigned char *)fb_grow(fb_head.at, &fb_head.room, fb_head.count + n, 1);
    if (n) memcpy(fb_head.at + fb_head.count, p, (size_t)n);
    fb_head.count += n;
}
static void fb_put8(int v) {
    unsigned char b = (unsigned char)v;
    fb_put(&b, 1);
}
static void fb_put32(uint32_t v) { fb_put(&v, 4); }
static void fb_put64(uint64_t v) { fb_put(&v, 8); }
static void fb_put_string(const char *s) {
    uint32_t n = (uint32_t)strlen(s);
    fb_put32(n);
    fb_put(s, n);
}
static void fb_put_view(const fb_view *v) {
    fb_put8(v->dtype);
    fb_put8(v->rank);
    fb_put64((uint64_t)(uintptr_t)v->low);
    fb_put64((uint64_t)(v->high - v->low));
    fb_put(v->shape, 8 * (uint64_t)v->rank);
    fb_put(v->strides, 8 * (uint64_t)v->rank);
}

static void fb_send(uint32_t type, const void *data, uint64_t bytes) {
    unsigned char frame[16];
    struct iovec part[3];
    uint32_t head = (uint32_t)fb_head.count;
    int first = 0;
    memcpy(frame, &type, 4);
    memcpy(frame + 4, &head, 4);
    memcpy(frame + 8, &bytes, 8);
    part[0].iov_base = frame;
    part[0].iov_len = 16;
    part[1].iov_base = fb_head.at;
    part[1].iov_len = head;
    part[2].iov_base = (void *)(uintptr_t)data;
    part[2].iov_len = (size_t)bytes;
    fb_head.count = 0;
    while (first < 3 && fb_sink >= 0) {
        ssize_t n;
        if (!part[first].iov_len) {
            first++;
            continue;
        }
        n = writev(fb_sink, part + first, 3 - first);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) { /* the reader is gone: the engine goes on without it */
            fprintf(stderr, "firstbad.h: the sink is closed: %s\n", strerror(errno));
            close(fb_sink);
            fb_sink = -1;
            fb_live = 0;
        }
        for (; n > 0 && first < 3; ) {
            size_t step = (size_t)n < part[first].iov_len ? (size_t)n : part[first].iov_len;
            part[first].iov_base = (char *)part[first].iov_base + step;
            part[first].iov_len -= step;
            n -= (ssize_t)step;
            if (!part[first].iov_len) first++;
        }
    }
}

static void fb_receive(void *into, uint64_t bytes) {
    char *at = (char *)into;
    while (bytes) {
        ssize_t n = read(fb_reply, at, bytes > INT_MAX ? (size_t)INT_MAX : (size_t)bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fb_die("no answer to a request for a replacement", "FIRSTBAD_REPLY is closed");
        at += n;
        bytes -= (uint64_t)n;
    }
}

/* ---- what the environment asks for ---- */

static int fb_open(const char *where, int flags) {
    struct stat info;
    int fd;
    if (!strncmp(where, "fd:", 3)) return atoi(where + 3);
    if (!stat(where, &info) && S_ISSOCK(info.st_mode)) {
        struct sockaddr_un address;
        memset(&address, 0, sizeof address);
        address.sun_family = AF_UNIX;
        strncpy(address.sun_path, where, sizeof address.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) fd = -1;
    } else {
        fd = open(where, flags, 0644);
    }
    if (fd < 0) fb_die(strerror(errno), where);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static char *fb_list(const char *variable) {
    const char *text = getenv(variable);
    char *list;
    long size;
    FILE *file;
    if (!text) return NULL;
    if (text[0] != '@') {
        list = (char *)malloc(strlen(text) + 1);
        if (list) memcpy(list, text, strlen(text) + 1);
        return list;
    }
    file = fopen(text + 1, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0) fb_die(variable, "cannot read the list");
    rewind(file);
    list = (char *)calloc((size_t)size + 1, 1);
    if (!list || fread(list, 1, (size_t)size, file) != (size_t)size) fb_die(variable, "cannot read the list");
    fclose(file);
    return list;
}

/* `*` matches anything */
static int fb_glob(const char *p, const char *end, const char *s) {
    const char *star = NULL, *back = s;
    while (*s) {
        if (p < end && *p == '*') {
            star = p++;
            back = s;
        } else if (p < end && *p == *s) {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++back;
        } else {
            return 0;
        }
    }
    while (p < end && *p == '*') p++;
    return p == end;
}

static int fb_listed(const char *list, const char *name) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", fb_step_name, name);
    while (*list) {
        size_t n;
        list += strspn(list, " ,\t\r\n");
        n = strcspn(list, " ,\t\r\n");
        if (n && fb_glob(list, list + n, memchr(list, '/', n) ? full : name)) return 1;
        list += n;
    }
    return 0;
}

static uint64_t fb_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* takes the lock; 0 (and no lock): there is no sink */
static int fb_enter(void) {
    const char *where, *reply, *weights;
    fb_lock();
    if (fb_live < 0) {
        where = getenv("FIRSTBAD_SINK");
        reply = getenv("FIRSTBAD_REPLY");
        weights = getenv("FIRSTBAD_WEIGHTS");
        fb_live = where && *where;
        if (fb_live) {
            struct sigaction pipe_action;
            fb_sink = fb_open(where, O_WRONLY | O_CREAT | O_TRUNC);
            if (reply && *reply) fb_reply = fb_open(reply, O_RDONLY);
            fb_want = fb_list("FIRSTBAD_WANT");
            fb_replace = fb_list("FIRSTBAD_REPLACE");
            fb_stop = fb_list("FIRSTBAD_STOP");
            fb_weights_always = weights && !strcmp(weights, "always");
            if (fb_replace && fb_reply < 0) fb_die("FIRSTBAD_REPLACE is set", "set FIRSTBAD_REPLY too");
            /* a reader that goes away must not kill the engine, unless it has its own idea of SIGPIPE */
            if (!sigaction(SIGPIPE, NULL, &pipe_action) && pipe_action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
            fb_put32(FB_WIRE_VERSION);
            fb_put32((uint32_t)getpid());
            fb_send(FB_REC_HELLO, NULL, 0);
            atexit(fb_close);
        }
    }
    if (!fb_live || fb_closed) {
        fb_unlock();
        return 0;
    }
    return 1;
}

/* ---- what an engine calls ---- */

void fb_step(const char *step) {
    if (!fb_enter()) return;
    snprintf(fb_step_name, sizeof fb_step_name, "%s", step);
    fb_put_string(fb_step_name);
    fb_send(FB_REC_STEP, NULL, 0);
    fb_unlock();
}

void fb_op(const char *kind, const char *name, const char *file, int line) {
    if (!fb_enter()) return;
    fb_current = ++fb_last_op;
    fb_put64(fb_current);
    fb_put32((uint32_t)line);
    fb_put_string(kind);
    fb_put_string(name);
    fb_put_string(file);
    fb_send(FB_REC_OP, NULL, 0);
    fb_start = fb_now();
    fb_end = 0;
    fb_unlock();
}

void fb_attr(const char *key, double value) {
    if (!fb_enter()) return;
    fb_put64(fb_current);
    fb_put(&value, 8);
    fb_put_string(key);
    fb_send(FB_REC_ATTR, NULL, 0);
    fb_unlock();
}

void fb_op_end(void) {
    if (!fb_enter()) return;
    fb_put64(fb_current);
    fb_put64(fb_start);
    fb_put64(fb_end ? fb_end : fb_now());
    fb_send(FB_REC_END, NULL, 0);
    fb_current = 0;
    fb_unlock();
}

static void fb_swap(fb_runs *a, fb_runs *b) {
    fb_runs keep = *a;
    *a = *b;
    *b = keep;
}

/* a piece of a read: the state of one written value, and who wrote over it */
static int fb_put_piece(uint64_t index) {
    static fb_runs own, other, rest;
    fb_record *r = &fb_table[index];
    uint64_t i, over = 0, at;
    int state = FB_STATE_OK, foreign = 0;
    if (r->kind == 2 && r->checked && !fb_weights_always) {
        for (i = index + 1; i < fb_count; i++)
            if (fb_table[i].view.low < r->view.high && fb_table[i].view.high > r->view.low) r->checked = 0;
    }
    if (!(r->kind == 2 && r->checked && !fb_weights_always) && fb_hash_view(&r->view) != r->hash)
        state = FB_STATE_CHANGED;
    r->checked = state == FB_STATE_OK;
    fb_put64(r->id);
    at = fb_head.count;
    fb_put8(state);
    fb_put64((uint64_t)(uintptr_t)r->view.low);
    fb_put64((uint64_t)(r->view.high - r->view.low));
    fb_put32(0);
    if (state == FB_STATE_OK) return 0;
    fb_view_runs(&r->view, &own);
    for (i = index + 1; i < fb_count; i++) {
        const fb_record *w = &fb_table[i];
        if (w->view.low >= r->view.high || w->view.high <= r->view.low) continue;
        fb_view_runs(&w->view, &other);
        if (!fb_subtract(&own, &other, &rest)) continue;
        fb_put64(w->id);
        foreign |= w->name != r->name;
        over++;
    }
    /* rows of a ring that newer rows of the same name replaced: nothing is wrong, nothing can be checked */
    if (over && !foreign) state = FB_STATE_SUPERSEDED;
    fb_head.at[at] = (unsigned char)state;
    memcpy(fb_head.at + at + 17, &over, 4);
    return state == FB_STATE_CHANGED;
}

void fb_read(const char *slot, const char *name, const void *ptr, int dtype, int rank, const int64_t *shape,
             const int64_t *strides) {
    static fb_runs left, bytes, rest;
    static fb_changes changed;
    fb_view v;
    uint64_t wanted, i, at;
    uint32_t pieces = 0;
    int pass, unwritten;
    if (!fb_enter()) return;
    v = fb_make_view(ptr, dtype, rank, shape, strides, slot);
    wanted = *name ? fb_hash(name, strlen(name)) : 0;
    fb_put64(fb_current);
    fb_put_string(slot);
    fb_put_string(name);
    fb_put_view(&v);
    at = fb_head.count;
    fb_put32(0);
    changed.count = 0;
    fb_view_runs(&v, &left);
    /* the value that is meant, where the caller says so; then the last writer of each byte */
    for (pass = wanted ? 0 : 1; pass < 2; pass++) {
        for (i = fb_count; i-- > 0 && left.count; ) {
            const fb_record *r = &fb_table[i];
            if (r->view.low >= v.high || r->view.high <= v.low || (wanted && (r->name == wanted) != (pass == 0))) continue;
            fb_view_runs(&r->view, &bytes);
            if (!fb_subtract(&left, &bytes, &rest)) continue;
            fb_swap(&left, &rest);
            if (fb_put_piece(i)) {
                changed.at = (fb_change *)fb_grow(changed.at, &changed.room, changed.count + 1, sizeof(fb_change));
                changed.at[changed.count].record = i;
                changed.at[changed.count++].piece = pieces;
            }
            pieces++;
        }
    }
    unwritten = left.count > 0;
    if (unwritten) {
        fb_put64(0);
        fb_put8(FB_STATE_UNWRITTEN);
        fb_put64((uint64_t)(uintptr_t)left.at[0].low);
        fb_put64((uint64_t)(left.at[left.count - 1].high - left.at[0].low));
        fb_put32(0);
        pieces++;
    }
    memcpy(fb_head.at + at, &pieces, 4);
    fb_send(FB_REC_READ, unwritten ? fb_flat(&v) : NULL, unwritten ? v.bytes : 0);
    for (i = 0; i < changed.count; i++) { /* what stands there now, in the view in which it was written */
        const fb_view *was = &fb_table[changed.at[i].record].view;
        fb_put64(fb_current);
        fb_put32(changed.at[i].piece);
        fb_send(FB_REC_AS_READ, fb_flat(was), was->bytes);
    }
    fb_start = fb_now();
    fb_unlock();
}

static int fb_covers(const fb_view *a, const fb_view *b) {
    static fb_runs of_a, of_b, rest;
    if (a->low > b->low || a->high < b->high) return 0;
    fb_view_runs(a, &of_a);
    fb_view_runs(b, &of_b);
    fb_subtract(&of_b, &of_a, &rest);
    return rest.count == 0;
}

/* a record that no read can mean any more: a newer one of its name covers all of it, or one of its name exists and
   some other covers it */
static void fb_sweep(uint64_t fresh) {
    uint64_t i, j, kept = 0;
    int thorough = fb_count > fb_swept;
    const fb_record *last = &fb_table[fresh];
    for (i = 0; i < fb_count; i++) {
        int dead = 0;
        if (i < fresh && fb_table[i].name == last->name) dead = fb_covers(&last->view, &fb_table[i].view);
        if (thorough && !dead) {
            int renamed = 0, covered = 0;
            for (j = i + 1; j < fb_count && !(renamed && covered); j++) {
                renamed |= fb_table[j].name == fb_table[i].name;
                covered = covered || fb_covers(&fb_table[j].view, &fb_table[i].view);
            }
            dead = renamed && covered;
        }
        if (!dead) {
            if (kept != i) fb_table[kept] = fb_table[i];
            kept++;
        }
    }
    fb_count = kept;
    if (thorough) fb_swept = 2 * fb_count > 2048 ? 2 * fb_count : 2048;
}

void fb_write(int kind, const char *name, void *ptr, int dtype, int rank, const int64_t *shape, const int64_t *strides) {
    fb_record record;
    const void *flat;
    int send, ask;
    uint64_t answer[2];
    if (!fb_enter()) return;
    if (!fb_end) fb_end = fb_now();
    memset(&record, 0, sizeof record);
    record.view = fb_make_view(ptr, dtype, rank, shape, strides, name);
    record.name = fb_hash(name, strlen(name));
    record.kind = kind;
    record.id = ++fb_last_id;
    flat = fb_flat(&record.view);
    record.hash = fb_hash(flat, record.view.bytes);
    ask = kind != 2 && fb_replace && fb_listed(fb_replace, name);
    send = ask || (kind != 2 && (!fb_want || fb_listed(fb_want, name)));
    fb_put64(kind == 0 ? fb_current : 0);
    fb_put64(record.id);
    fb_put8(kind);
    fb_put8(send);
    fb_put8(ask);
    fb_put64(record.hash);
    fb_put_view(&record.view);
    fb_put_string(name);
    fb_send(FB_REC_WRITE, send ? flat : NULL, send ? record.view.bytes : 0);
    if (ask && fb_live) {
        fb_receive(answer, sizeof answer); /* id of the value, bytes that follow (0: keep) */
        if (answer[0] && answer[0] != record.id) fb_die("the answer is for another value", name);
        if (answer[1]) {
            if (answer[1] != record.view.bytes) fb_die("the replacement has another size", name);
            fb_data.at = (unsigned char *)fb_grow(fb_data.at, &fb_data.room, answer[1], 1);
            fb_receive(fb_data.at, answer[1]);
            fb_unflatten(&record.view, (char *)fb_data.at);
            record.hash = fb_hash(fb_data.at, answer[1]);
            fb_put64(record.id);
            fb_put64(record.hash);
            fb_send(FB_REC_REPLACED, NULL, 0);
        }
    }
    fb_table = (fb_record *)fb_grow(fb_table, &fb_room, fb_count + 1, sizeof(fb_record));
    fb_table[fb_count++] = record;
    if (kind != 2) fb_sweep(fb_count - 1);
    if (fb_stop && kind != 2 && fb_listed(fb_stop, name)) {
        fb_put8(1);
        fb_send(FB_REC_CLOSE, NULL, 0);
        _exit(0);
    }
    fb_unlock();
}

void fb_read4(const char *slot, const char *name, const void *ptr, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t shape[4];
    shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
    fb_read(slot, name, ptr, FB_F32, rank, shape, NULL);
}

void fb_write4(int kind, const char *name, void *ptr, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t shape[4];
    shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
    fb_write(kind, name, ptr, FB_F32, rank, shape, NULL);
}

void fb_free(const void *ptr, uint64_t bytes) {
    const char *low = (const char *)ptr, *high = low + bytes;
    uint64_t i, kept = 0;
    if (!fb_enter()) return;
    for (i = 0; i < fb_count; i++)
        if (fb_table[i].view.low >= high || fb_table[i].view.high <= low) fb_table[kept++] = fb_table[i];
    fb_count = kept;
    fb_unlock();
}

void fb_token(int64_t token) {
    if (!fb_enter()) return;
    fb_put64((uint64_t)token);
    fb_send(FB_REC_TOKEN, NULL, 0);
    fb_unlock();
}

void fb_text(const char *key, const char *text) {
    if (!fb_enter()) return;
    fb_put_string(key);
    fb_put_string(text);
    fb_send(FB_REC_TEXT, NULL, 0);
    fb_unlock();
}

void fb_close(void) {
    uint64_t i;
    if (!fb_enter()) return;
    for (i = 0; i < fb_count; i++) {
        if (fb_table[i].kind != 2 || fb_hash_view(&fb_table[i].view) == fb_table[i].hash) continue;
        fb_put64(fb_table[i].id);
        fb_send(FB_REC_WEIGHT_CHANGED, NULL, 0);
    }
    fb_put8(0);
    fb_send(FB_REC_CLOSE, NULL, 0);
    fb_closed = 1;
    fb_unlock();
}
