// Products of up to 32 rows: the rows of a block, of experts, of the head, and of the context of most STEPs.
// They wait for weights from memory, so four stages are under way.

#include "exl3_product.cuh"

ENTRIES(exl3_gemm, 4, 4)
