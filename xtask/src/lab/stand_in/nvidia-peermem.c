// Stand-in for the GPUDirect RDMA module: only depends on `nvidia`.
#include <linux/module.h>

#include "stand_in.h"

MODULE_DESCRIPTION("stand-in for the GPUDirect RDMA module of the NVIDIA driver");
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);

static int __init peermem_init(void)
{
	return nvidia_stand_in_attach();
}

static void __exit peermem_exit(void)
{
}

module_init(peermem_init);
module_exit(peermem_exit);
