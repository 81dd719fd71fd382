"""One decode step of a Llama-like model as seven functions, in Triton (`triton_launch`) and in plain torch (`reference`).

Both modules have the same functions with the same arguments. `triton_launch` needs Triton, so it is imported only where it is used.
"""
