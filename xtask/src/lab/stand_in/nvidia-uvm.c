// Stand-in for the unified memory module: depends on `nvidia` and has a device of its own.
#include <linux/fs.h>
#include <linux/module.h>

#include "stand_in.h"

MODULE_DESCRIPTION("stand-in for the unified memory module of the NVIDIA driver");
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
};

static int major;

static int __init uvm_init(void)
{
	int error = nvidia_stand_in_attach();

	if (error)
		return error;
	major = __register_chrdev(0, 0, 2, "nvidia-uvm", &device_operations);
	return major < 0 ? major : 0;
}

static void __exit uvm_exit(void)
{
	__unregister_chrdev(major, 0, 2, "nvidia-uvm");
}

module_init(uvm_init);
module_exit(uvm_exit);
