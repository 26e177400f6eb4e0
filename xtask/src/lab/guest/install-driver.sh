# Installs a driver into a root file system, without booting it: ROOT ARCHIVE PACKAGE...
# Runs in a mount namespace of its own. DKMS builds for the kernel in the root.
root=$1
archive=$2
shift 2
mount --bind "$archive" "$root/srv/archive"
mount -t proc proc "$root/proc"
sources=$root/etc/apt/sources.list.d/lab.list
echo 'deb [trusted=yes] file:/srv/archive/bookworm-backports ./' >"$sources"
# Services start at boot.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 0755 "$root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
chroot "$root" apt-get --quiet=2 update
chroot "$root" apt-get --quiet --yes --no-install-recommends \
    --target-release bookworm-backports install "$@" 2>&1
chroot "$root" modinfo -k "$(ls "$root/lib/modules")" nvidia-current
rm "$root/usr/sbin/policy-rc.d" "$sources"
