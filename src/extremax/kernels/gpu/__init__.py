"""The inner loops of training and ranking on a GPU, in Triton, beside `extremax.kernels.cpu`.

Every function takes torch tensors on one device and starts kernels without waiting for them: no
step of training asks the host for a number that the device computes. With ``TRITON_INTERPRET=1`` in
the environment the same kernels run on the CPU, one program at a time, which is how they are tested
where there is no GPU.
"""
