"""Triton kernels for CUDA devices: bfloat16, float16 and float32.

`kernels.TritonKernels(shape)` is the set behind `quire.backends.ops.Kernels`; nothing else is
needed for a pass that runs eagerly. What a captured decode step calls by itself:

attention of a decode step (decode.py); all tensors keep their addresses between replays:
    buffers = DecodeBuffers.make(shape, max_rows, device, prefix_parts=0)
                                                               once, shared by every bucket
    attention = DecodeAttention(shape, buffers, num_rows, window=None, prefixes=None)
                                                               once per bucket and window
    attention.plan(context_lens, tables, rows=None)            one small launch per step
        context_lens int32 [num_rows], this step's token included, 0 = no row here
        tables       int32 [any, width] block tables
        rows         int32 [num_rows], the table row of each place; None: place i has row i
    out = attention.attend(q, keys, values)                    per layer: one launch, or three
        q [num_rows, heads, D] -> [num_rows, heads * D]; zeros for places without a row
    out = attention.attend_packed(qkv, cos, sin, slots, keys, values, norms)
                                  if attention.takes_packed: norm_rope_store and attend in one

shared prefixes (prefix.py), for buffers made with prefix_parts >= size.parts:
    size = PrefixSize.of(shape, num_rows, queries=64, blocks=4096)   part of a graph's key
    work = PrefixWork(shape, num_rows, device, size)                 `prefixes=work` above
    work.fill([(blocks, places), ...])    host arrays int32; one asynchronous copy, no launch;
                                          again whenever groups or the places of rows change

the packed qkv of a layer (heads.py):
    q = norm_rope_store(qkv, cos, sin, slots, keys, values, shape, norms=None)
        qkv [T, heads + 2 kv_heads, D]; cos, sin float32 [T, D / 2]; slots [T], -1 = not stored
        norms = HeadNorms(q_weight, k_weight, eps) for models that norm q and k by head
        -> q [T, heads, D]

the products of steps with at most 32 rows (small_batch.py), in bfloat16 and float32:
    stream = embed(token_ids, table, norm)                     the residual stream of the step
    products = ThinProducts()
    y = products.normed(stream, weight, bias)                  norm, then multiply
    y = products.gated(stream, weight, bias)                   norm, multiply, open the gate
    products.add(stream, x, weight, bias, norm)                multiply, then add to the stream

sampling (sample.py): one token per line, nothing waits for the host
    sample(logits, rows, positions, columns, out, *, truncated) -> None
        logits [R, V]; rows int32 [R] (index into the columns, -1 = no row: token 0, not failed);
        positions int32 [R], where the drawn token will stand
        columns = SamplingColumns(temperature f32, top_k i32, log_min_p f32, top_p f64,
                                  noise_key i64, sample i32), each [max_rows]
        out = SampleBuffers(max_lines, vocab_size, device): .tokens int64, .failed uint8
        truncated = whether any row may have top_k, top_p or min_p (else that launch is left out)

blocks (blocks.py): copy_blocks(cache, pairs), pairs int32 [n, 2] on the device, -1 = none
"""
