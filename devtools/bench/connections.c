/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Load for ./dev bench connect: short TCP connections, one byte each way, closed by RST so that no TIME_WAIT piles up.
 *   connections serve PORT                            until its parent ends
 *   connections dial FIRST STEP TARGETS PORT          for every line COUNT of its input: make COUNT connections, print
 *                                                     the nanoseconds that they took
 * It dials TARGETS addresses, FIRST and every STEP-th after it, in an order in which any run of connections is spread
 * evenly over them. Client and server have a processor each where there are two, before all processes of ordinary
 * priority; the client's is taken by its own calls and by what the kernel does with its packets on the way: on veth devices
 * that is all done where the sender runs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE 32
#define PATIENCE_SECONDS 60

static const struct linger no_linger = { .l_onoff = 1, .l_linger = 0 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Stay on the first or the last processor that this process may use, before others if that is allowed. */
static void stay(int last)
{
	const struct sched_param before_others = { .sched_priority = 1 };
	cpu_set_t allowed, one;
	int chosen = -1;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		fail("sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && (last || chosen < 0))
			chosen = cpu;
	CPU_ZERO(&one);
	CPU_SET(chosen, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		fail("sched_setaffinity");
	if (sched_setscheduler(0, SCHED_FIFO, &before_others))
		perror("sched_setscheduler");
}

static void serve(int port)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(port) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener }, ready[64];
	char byte;

	if (bind(listener, (struct sockaddr *)&own, sizeof(own)) || listen(listener, 4096))
		fail("listen");
	if (puts("ready") < 0 || fflush(stdout))
		fail("ready");
	epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		int count = epoll_wait(poll, ready, 64, -1);

		for (int index = 0; index < count; index++) {
			int from = ready[index].data.fd;

			if (from == listener) {
				while ((event.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
					epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
			} else if (read(from, &byte, 1) != 1 || write(from, &byte, 1) != 1) {
				close(from);
			}
		}
	}
}

static unsigned long common_divisor(unsigned long a, unsigned long b)
{
	return b ? common_divisor(b, a % b) : a;
}

/* Steps of the golden section, made prime to their number, reach all targets and leave no gap for long. */
static unsigned long stride(unsigned long targets)
{
	unsigned long found = targets * 0.6180339887 + 1;

	while (common_divisor(found, targets) != 1)
		found++;
	return found;
}

static void dial(struct sockaddr_in *peer, unsigned long step, unsigned long targets, long count)
{
	static unsigned long target;
	const in_addr_t first = ntohl(peer->sin_addr.s_addr);
	const unsigned long by = stride(targets);
	struct sockaddr_in to = *peer;
	int clients[AT_ONCE];
	char byte = 'x';

	while (count > 0) {
		int open = count < AT_ONCE ? count : AT_ONCE;

		for (int index = 0; index < open; index++) {
			clients[index] = socket(AF_INET, SOCK_STREAM, 0);
			to.sin_addr.s_addr = htonl(first + target * step);
			target = (target + by) % targets;
			if (connect(clients[index], (struct sockaddr *)&to, sizeof(to)))
				fail("connect");
			if (write(clients[index], &byte, 1) != 1)
				fail("write");
		}
		for (int index = 0; index < open; index++) {
			if (read(clients[index], &byte, 1) != 1)
				fail("read");
			setsockopt(clients[index], SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger));
			close(clients[index]);
		}
		count -= open;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in peer = { .sin_family = AF_INET };
	struct timespec begin, end;
	long count;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc == 3 && !strcmp(argv[1], "serve")) {
		stay(1);
		serve(atoi(argv[2]));
	}
	if (argc != 6 || strcmp(argv[1], "dial") || inet_pton(AF_INET, argv[2], &peer.sin_addr) != 1)
		return 2;
	stay(0);
	peer.sin_port = htons(atoi(argv[5]));
	while (scanf("%ld", &count) == 1) {
		/* A path that loses packets ends the run. */
		alarm(PATIENCE_SECONDS);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		dial(&peer, atol(argv[3]), atol(argv[4]), count);
		clock_gettime(CLOCK_MONOTONIC, &end);
		alarm(0);
		printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec);
		fflush(stdout);
	}
	return 0;
}
