// Stand-in for the DRM module: only depends on `nvidia_modeset`.
#include <linux/module.h>

#include "stand_in.h"

MODULE_DESCRIPTION("stand-in for the DRM module of the NVIDIA driver");
MODULE_LICENSE(STAND_IN_LICENSE);
MODULE_VERSION(STAND_IN_VERSION);

static int __init drm_init(void)
{
	return nvidia_modeset_stand_in_attach();
}

static void __exit drm_exit(void)
{
}

module_init(drm_init);
module_exit(drm_exit);
