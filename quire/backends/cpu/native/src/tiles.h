/* What all that multiplies in AMX's tiles begins with: whether the compiler knows them, what it
 * must be told to use them, and their shapes. */
#include "quire.h"

#if defined(__x86_64__)                                                                            \
    && ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define HAS_TILES 1
#define ISA 3
#include "vector.h"
#undef TARGET
#undef INLINE
#define TARGET                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,amx-tile,"  \
                          "amx-bf16")))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef uint16_t half; /* a bfloat16 */

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles 0 to 5 get so many rows, 6 and 7 are right factors and have all 16. */
TARGET static void shape_tiles(int64_t rows)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        shapes.row_bytes[t] = 64;
        shapes.rows[t] = t < 6 ? (uint8_t)rows : 16;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* the intrinsic hides what it reads */
    _tile_loadconfig(&shapes);
}
#else
#define HAS_TILES 0
#endif
