/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Load for ./dev bench connect: short TCP connections, one byte each way, closed by RST so that no TIME_WAIT piles up.
 *   connections serve ADDRESS PORT            until killed
 *   connections dial ADDRESS PORT COUNT WORKERS   prints the nanoseconds that COUNT connections took
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in peer;
static const struct linger no_linger = { .l_onoff = 1, .l_linger = 0 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void serve(void)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener }, ready[64];
	char byte;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&peer, sizeof(peer)) || listen(listener, 4096))
		fail("listen");
	epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		int count = epoll_wait(poll, ready, 64, -1);

		for (int index = 0; index < count; index++) {
			int from = ready[index].data.fd;

			if (from == listener) {
				event.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
				if (event.data.fd >= 0)
					epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
			} else if (read(from, &byte, 1) != 1 || write(from, &byte, 1) != 1) {
				close(from);
			}
		}
	}
}

static void dial(long count)
{
	char byte = 'x';

	while (count--) {
		int client = socket(AF_INET, SOCK_STREAM, 0);

		if (connect(client, (struct sockaddr *)&peer, sizeof(peer)))
			fail("connect");
		if (write(client, &byte, 1) != 1 || read(client, &byte, 1) != 1)
			fail("exchange");
		setsockopt(client, SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger));
		close(client);
	}
}

int main(int argc, char **argv)
{
	struct timespec begin, end;
	int status, failed = 0;

	if (argc < 4)
		return 2;
	peer.sin_family = AF_INET;
	peer.sin_port = htons(atoi(argv[3]));
	inet_pton(AF_INET, argv[2], &peer.sin_addr);
	if (!strcmp(argv[1], "serve"))
		serve();
	if (argc < 6)
		return 2;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int worker = 0; worker < atoi(argv[5]); worker++) {
		if (fork() == 0) {
			dial(atol(argv[4]) / atoi(argv[5]));
			_exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec);
	return failed ? 1 : 0;
}
