/* Threads that sleep until there is a range to share out. Leaves out priorities, nesting and cancellation. */
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t *threads;
    int count, stop;
    uint64_t round; /* raised by each parallel_for */
    int busy;
    Body body;
    void *context;
    int64_t end, grain;
    int64_t next; /* atomic */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void take_chunks(void) {
    for (;;) {
        int64_t begin = __atomic_fetch_add(&pool.next, pool.grain, __ATOMIC_RELAXED);
        if (begin >= pool.end) return;
        pool.body(pool.context, begin, begin + pool.grain < pool.end ? begin + pool.grain : pool.end);
    }
}

static void *work(void *unused) {
    uint64_t seen = 0;
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.stop && pool.round == seen) pthread_cond_wait(&pool.work, &pool.lock);
        if (pool.stop) break;
        seen = pool.round;
        pthread_mutex_unlock(&pool.lock);
        take_chunks();
        pthread_mutex_lock(&pool.lock);
        if (--pool.busy == 0) pthread_cond_signal(&pool.done);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

void pool_start(int threads) {
    pool.threads = calloc((size_t)(threads > 1 ? threads : 1), sizeof(pthread_t));
    while (pool.threads && pool.count < threads - 1) {
        if (pthread_create(&pool.threads[pool.count], NULL, work, NULL)) break; /* fewer threads do the same work */
        pool.count++;
    }
}

void pool_stop(void) {
    pthread_mutex_lock(&pool.lock);
    pool.stop = 1;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < pool.count; i++) pthread_join(pool.threads[i], NULL);
    free(pool.threads);
    pool.threads = NULL;
    pool.count = 0;
    pool.stop = 0;
}

void parallel_for(int64_t count, int64_t grain, Body body, void *context) {
    if (count <= grain || pool.count == 0) {
        if (count > 0) body(context, 0, count);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    pool.body = body;
    pool.context = context;
    pool.end = count;
    pool.grain = grain;
    pool.next = 0;
    pool.busy = pool.count;
    pool.round++;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    take_chunks();
    pthread_mutex_lock(&pool.lock);
    while (pool.busy) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
