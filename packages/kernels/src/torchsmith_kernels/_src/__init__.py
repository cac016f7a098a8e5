"""Private code: one folder per op, plus what all ops share.

``launch`` compiles and launches Triton kernels, ``dispatch`` registers ops, ``store`` keeps tuned
configurations, ``template`` is what a compiler sees of an op. Read ``rms_norm/op.py`` first.
"""
