// Products of up to 128 rows, the window of a slot: context rows after a prompt or a resync. Decoding and
// reading the weights once for all of them leaves tensor cores as what is waited for, and two stages, which
// leave room for a second block on a multiprocessor, are enough.

#include "exl3_product.cuh"

ENTRIES(exl3_wide, 16, 2)
