/* Who is told of a signal. */
#ifndef IWP_BASE_SIGNALS_H
#define IWP_BASE_SIGNALS_H

#include <signal.h>
#include <string.h>

static inline void iwp_on_signal(int sig, void (*handler)(int sig)) {
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = handler;
    sigemptyset(&sa.sa_mask);
    sigaction(sig, &sa, NULL);
}

/* Ctrl-C and the polite end. */
static inline void iwp_on_end(void (*handler)(int sig)) {
    iwp_on_signal(SIGINT, handler);
    iwp_on_signal(SIGTERM, handler);
}

#endif
