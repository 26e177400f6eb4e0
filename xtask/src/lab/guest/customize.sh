#!/bin/sh
# Makes the installed packages a guest of the lab.
set -eu
root=$1
files=$2
install -m 0755 "$files/agent.pl" "$root/usr/local/sbin/farrier-lab-agent"
install -m 0644 "$files/farrier-lab-agent.service" "$root/etc/systemd/system/"
echo farrier-lab >"$root/etc/hostname"
printf '127.0.0.1 localhost farrier-lab\n' >"$root/etc/hosts"
mkdir -p "$root/srv/archive"
printf '%s\n' \
    'LABEL=farrier-lab / ext4 defaults 0 1' \
    'LABEL=farrier-archive /srv/archive ext4 ro,nofail 0 0' >"$root/etc/fstab"
echo 'deb [trusted=yes] file:/srv/archive/bookworm ./' >"$root/etc/apt/sources.list"
# The lab starts these itself, at a known moment.
chroot "$root" systemctl --quiet enable farrier-lab-agent.service
chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
mkdir -p "$root/etc/systemd/system/serial-getty@ttyS0.service.d"
printf '[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --keep-baud 115200 %%I $TERM\n' \
    >"$root/etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf"
chroot "$root" passwd --quiet --delete root
cat >"$root/etc/default/grub" <<'GRUB'
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_DISTRIBUTOR=Debian
GRUB_CMDLINE_LINUX="console=ttyS0 loglevel=5 systemd.show_status=false panic=-1"
GRUB_TERMINAL=serial
GRUB_DISABLE_OS_PROBER=true
GRUB
: >"$root/etc/machine-id"
# What `update-grub` writes at the first kernel upgrade; it needs the disk, which is not there yet.
cat >"$root/boot/grub/grub.cfg" <<'GRUB'
serial --unit=0 --speed=115200
terminal_input serial
terminal_output serial
set timeout=0
menuentry 'Debian GNU/Linux' {
	search --no-floppy --label farrier-lab --set=root
	linux /vmlinuz root=LABEL=farrier-lab ro console=ttyS0 loglevel=5 systemd.show_status=false panic=-1
	initrd /initrd.img
}
GRUB
