// Stand-in for the display module: only depends on `nvidia`.
#include <linux/module.h>

#include "stand_in.h"

MODULE_DESCRIPTION("stand-in for the mode setting module of the NVIDIA driver");
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);

int nvidia_modeset_stand_in_attach(void)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_modeset_stand_in_attach);

static int __init modeset_init(void)
{
	return nvidia_stand_in_attach();
}

static void __exit modeset_exit(void)
{
}

module_init(modeset_init);
module_exit(modeset_exit);
