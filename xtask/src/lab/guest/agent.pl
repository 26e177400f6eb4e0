#!/usr/bin/perl
# Runs commands of the lab's host, which arrive over a virtio-serial port.
#
# host to guest   run ID BYTES\n  then the arguments, each ended by a NUL byte
# guest to host   hello BOOT_ID\n
#                 out ID BYTES\n  or  err ID BYTES\n  then the bytes
#                 exit ID CODE\n  128 + signal number if a signal ended the command
use strict;
use warnings;
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK O_RDWR);
use POSIX qw(WNOHANG);

my $path = '/dev/virtio-ports/farrier.lab';
sysopen(my $port, $path, O_RDWR) or die "$path: $!\n";
$ENV{PATH} = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
$ENV{LC_ALL} = 'C.UTF-8';
$ENV{HOME} = '/root';

# A command may leave children behind that keep its pipes open, so its exit is what ends it.
pipe(my $exited, my $wake) or die "pipe: $!\n";
for my $end ($exited, $wake) {
    fcntl($end, F_SETFL, fcntl($end, F_GETFL, 0) | O_NONBLOCK);
}
$SIG{CHLD} = sub { syswrite $wake, '.' };

my %jobs;

sub send_bytes {
    my ($bytes) = @_;
    while (length $bytes) {
        my $written = syswrite $port, $bytes;
        if (defined $written) { substr($bytes, 0, $written, '') }
        elsif (!$!{EINTR} && !$!{EAGAIN}) { die "write: $!\n" }
    }
}

sub start {
    my ($id, @argv) = @_;
    pipe(my $out, my $out_end) or die "pipe: $!\n";
    pipe(my $err, my $err_end) or die "pipe: $!\n";
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        POSIX::setsid();
        open(STDIN, '<', '/dev/null');
        POSIX::dup2(fileno $out_end, 1);
        POSIX::dup2(fileno $err_end, 2);
        exec { $argv[0] } @argv or do { print STDERR "$argv[0]: $!\n"; POSIX::_exit(127) };
    }
    for my $end ($out, $err) {
        fcntl($end, F_SETFL, fcntl($end, F_GETFL, 0) | O_NONBLOCK);
    }
    $jobs{$id} = { pid => $pid, pipes => { out => $out, err => $err } };
}

# Forwards what a pipe has, and drops the pipe at its end.
sub forward {
    my ($id, $name) = @_;
    my $pipe = $jobs{$id}{pipes}{$name};
    while (1) {
        my $read = sysread $pipe, my $bytes, 65536;
        if (!defined $read) { return }
        if ($read == 0) { delete $jobs{$id}{pipes}{$name}; return }
        send_bytes("$name $id $read\n$bytes");
    }
}

sub reap {
    sysread $exited, my $ignored, 4096;
    while ((my $pid = waitpid(-1, WNOHANG)) > 0) {
        my $status = $?;
        my ($id) = grep { $jobs{$_}{pid} == $pid } keys %jobs;
        next unless defined $id;
        forward($id, $_) for keys %{ $jobs{$id}{pipes} };
        delete $jobs{$id};
        my $code = $status & 127 ? 128 + ($status & 127) : $status >> 8;
        send_bytes("exit $id $code\n");
    }
}

open(my $boot, '<', '/proc/sys/kernel/random/boot_id') or die "boot_id: $!\n";
chomp(my $boot_id = <$boot>);
send_bytes("hello $boot_id\n");

my $input = '';
while (1) {
    my %by_fd = (fileno($port) => undef, fileno($exited) => undef);
    for my $id (keys %jobs) {
        $by_fd{ fileno $jobs{$id}{pipes}{$_} } = [$id, $_] for keys %{ $jobs{$id}{pipes} };
    }
    my $ready = '';
    vec($ready, $_, 1) = 1 for keys %by_fd;
    next if select($ready, undef, undef, undef) < 0;
    for my $fd (grep { vec($ready, $_, 1) && $by_fd{$_} } keys %by_fd) {
        forward(@{ $by_fd{$fd} });
    }
    reap() if vec($ready, fileno($exited), 1);
    next unless vec($ready, fileno($port), 1);
    my $read = sysread $port, $input, 65536, length $input;
    # The host end is closed: systemd starts the agent again.
    exit 1 if defined $read && $read == 0;
    while ($input =~ /\Arun (\d+) (\d+)\n/ && length($input) >= length($&) + $2) {
        my ($header, $id, $bytes) = (length $&, $1, $2);
        start($id, split /\0/, substr($input, $header, $bytes));
        substr($input, 0, $header + $bytes, '');
    }
}
