// Stand-in for the NVIDIA kernel module. It drives no GPU: it has the version, the files in /proc
// and the character devices of the real module, and counts references as the real one does.
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "stand_in.h"

#define MAJOR_NUMBER 195
#define MINORS 256

MODULE_DESCRIPTION("stand-in for the NVIDIA driver");
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);

static int stand_in_init_error;
module_param(stand_in_init_error, int, 0444);
MODULE_PARM_DESC(stand_in_init_error, "errno with which loading fails, such as 19 for ENODEV");

static char *NVreg_CoherentGPUMemoryMode = "";
module_param(NVreg_CoherentGPUMemoryMode, charp, 0444);

static int NVreg_EnableGpuFirmware = 18;
module_param(NVreg_EnableGpuFirmware, int, 0444);

static int NVreg_NvLinkDisable;
module_param(NVreg_NvLinkDisable, int, 0444);

static int stand_in_open(struct inode *inode, struct file *file)
{
	return 0;
}

// `owner` makes an open file hold a reference of the module.
static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = stand_in_open,
};

static int show_version(struct seq_file *file, void *data)
{
	seq_puts(file, "NVRM version: " STAND_IN_NVRM "\n");
	seq_puts(file, "GCC version:  gcc version " __VERSION__ "\n");
	return 0;
}

static int show_params(struct seq_file *file, void *data)
{
	seq_puts(file, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	seq_printf(file, "NvLinkDisable: %d\n", NVreg_NvLinkDisable);
	seq_printf(file, "EnableGpuFirmware: %d\n", NVreg_EnableGpuFirmware);
	seq_printf(file, "CoherentGPUMemoryMode: \"%s\"\n", NVreg_CoherentGPUMemoryMode);
	return 0;
}

// The other modules call this, so that they depend on this one.
int nvidia_stand_in_attach(void)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_stand_in_attach);

static int __init nvidia_init(void)
{
	struct proc_dir_entry *directory;
	int error;

	if (stand_in_init_error) {
		pr_err("NVRM: stand-in: loading fails with error %d as requested\n",
		       stand_in_init_error);
		return -stand_in_init_error;
	}
	error = __register_chrdev(MAJOR_NUMBER, 0, MINORS, "nvidia", &device_operations);
	if (error < 0)
		return error;
	directory = proc_mkdir_mode("driver/nvidia", 0555, NULL);
	if (!directory || !proc_create_single("version", 0444, directory, show_version) ||
	    !proc_create_single("params", 0444, directory, show_params)) {
		remove_proc_subtree("driver/nvidia", NULL);
		__unregister_chrdev(MAJOR_NUMBER, 0, MINORS, "nvidia");
		return -ENOMEM;
	}
	pr_info("NVRM: loading " STAND_IN_NVRM "\n");
	return 0;
}

static void __exit nvidia_exit(void)
{
	remove_proc_subtree("driver/nvidia", NULL);
	__unregister_chrdev(MAJOR_NUMBER, 0, MINORS, "nvidia");
}

module_init(nvidia_init);
module_exit(nvidia_exit);
