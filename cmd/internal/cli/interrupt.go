package cli

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Catch sends signals what asks the program to end: an interrupt, SIGTERM, and the end of the terminal, but for that
// where whoever started it wants it to survive, as nohup does. To write to a pipe that nobody reads is from then on an
// error, and no signal: that would end an engine with its children and cgroups left behind.
func Catch(signals chan<- os.Signal) {
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // not ignored: programs that are started would inherit that
}

// interruptGrace is how long an interrupt after the first may wait to be taken.
const interruptGrace = time.Second

// Interrupts calls stop at the first of the signals, and offers those after it to whoever drains or waits. One that
// nobody takes within a second calls exit: what should have ended hangs. It goes on until signals is closed.
func Interrupts(signals <-chan os.Signal, stop, exit func()) (interrupted <-chan struct{}) {
	offered := make(chan struct{})
	go func() {
		<-signals
		stop()
		for range signals {
			select {
			case offered <- struct{}{}:
			case <-time.After(interruptGrace):
				exit()
			}
		}
	}()
	return offered
}
