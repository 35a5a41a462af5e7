// Products in tiles of 128 rows, the window of a slot: context rows after a prompt or a resync, up to 512. Decoding
// the weights once for a tile leaves tensor cores as what is waited for, and two stages, which leave room for a
// second block on a multiprocessor, are enough.

#include "exl3_product.cuh"

ENTRIES(exl3_wide, 16, 2)
