"""One decode step of a Llama-like model as seven small pieces, in Triton (`fast`) and written out in torch (`plain`).

`plain` and `fast` hold functions of the same names, arguments and meaning. `fast` needs Triton, so it is imported only where it is used.
"""
