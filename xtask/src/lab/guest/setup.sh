#!/bin/sh
# Prepares the root before its packages are installed, so that the first initramfs is small: the
# lab builds many, under software emulation.
set -eu
root=$1
mkdir -p "$root/etc/initramfs-tools/conf.d" "$root/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\n' >"$root/etc/initramfs-tools/conf.d/farrier-lab"
printf '%s\n' virtio_pci virtio_blk ext4 >"$root/usr/share/initramfs-tools/modules.d/farrier-lab"
