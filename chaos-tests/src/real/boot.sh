#!/bin/sh
# The first process of a host of its own: new namespaces, a copy of this machine's files that is thrown away, and systemd.
# $1 is an empty folder, $2 the program.
set -e
space=$1 root=$1/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$space"
mkdir "$space/up" "$space/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$space/up,workdir=$space/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
groups=$root/sys/fs/cgroup
if grep -q '^0::/$' /proc/self/cgroup && ! grep -q ':name=systemd:' /proc/self/cgroup; then
    mount -t cgroup2 cgroup2 "$groups"
else
    mount -t tmpfs -o mode=755 tmpfs "$groups"
    for group in cpu cpuacct cpuset memory devices freezer blkio pids; do
        mkdir "$groups/$group"
        mount -t cgroup -o $group cgroup "$groups/$group" 2>/dev/null || rmdir "$groups/$group"
    done
    mkdir "$groups/systemd" "$groups/unified"
    mount -t cgroup -o none,name=systemd cgroup "$groups/systemd"
    mount -t cgroup2 cgroup2 "$groups/unified" 2>/dev/null || rmdir "$groups/unified"
fi
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
# Devices of harmless drivers that no task has by itself.
mknod -m 666 "$root/dev/card0" c 10 229
mknod -m 666 "$root/dev/card1" c 10 237
touch "$root/usr/local/bin/rota-program"
mount --bind "$2" "$root/usr/local/bin/rota-program"
ip link set lo up || true
# Of this machine's own services none is wanted.
mkdir -p "$root/etc/systemd/system" "$root/etc/rota"
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' > "$root/etc/systemd/system/lab.target"
mkdir "$root/before"
cd "$root"
pivot_root . before
umount -l /before
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=lab.target --log-target=null
