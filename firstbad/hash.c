/* The sum at the heart of hash_array (hashing.py holds the definition and the end of it): every 64-bit word is mixed
 * with its position and all are added up, so the parts of an array can be summed by several threads. */
#include <stdint.h>
#include <string.h>

uint64_t fb_hash_words(const unsigned char *bytes, int64_t words, uint64_t first) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < words; i++) {
        uint64_t w;
        memcpy(&w, bytes + 8 * i, 8);
        uint64_t z = w ^ ((first + (uint64_t)i + 1) * 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93ull;
        sum += z ^ (z >> 32);
    }
    return sum;
}
