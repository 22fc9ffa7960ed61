/* States of one pass, from numbers on standard input to numbers on standard output: as driver.c. */
#include <stdio.h>
#include <stdlib.h>

#include "quire.h"

static void *take(size_t size)
{
    void *room = malloc(size + 64);
    if (!room || fread(room, 1, size, stdin) != size)
        exit(3);
    return room;
}

enum { SPANS, TOKENS, HEADS, KEY_HEADS, KEY, VALUE, IN_TURN, CORRECTS, HALF, BLOCK, BLOCKS,
       ALLOWED, NUMBERS };

int main(void)
{
    const int64_t *n = take(NUMBERS * 8);
    const size_t read = n[TOKENS] * n[HEADS] * n[VALUE] * 4, cache = n[BLOCKS] * n[BLOCK] * 4;
    quire_allow(n[ALLOWED]);
    struct quire_states s = {
        .num_spans = n[SPANS], .num_tokens = n[TOKENS], .num_heads = n[HEADS],
        .num_key_heads = n[KEY_HEADS], .key_dim = n[KEY], .value_dim = n[VALUE],
        .in_turn = n[IN_TURN], .corrects = n[CORRECTS], .half = n[HALF], .block = n[BLOCK],
    };
    s.spans = take(n[SPANS] * 4 * 8);
    s.q = take(n[TOKENS] * n[KEY_HEADS] * n[KEY] * 4);
    s.k = take(n[TOKENS] * n[KEY_HEADS] * n[KEY] * 4);
    s.v = take(read);
    s.decay = take(n[TOKENS] * n[HEADS] * 4);
    s.rate = take(n[TOKENS] * n[HEADS] * 4);
    s.keys = take(cache);
    s.values = take(cache);
    s.read = malloc(read);
    s.scratch = malloc(quire_num_threads() * quire_states_room(n[KEY], n[VALUE]) * 4);
    quire_take_up(&s);
    return fwrite(s.read, 1, read, stdout) != read || fwrite(s.keys, 1, cache, stdout) != cache ||
           fwrite(s.values, 1, cache, stdout) != cache;
}
