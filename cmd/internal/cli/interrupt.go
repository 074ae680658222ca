package cli

import (
	"os"
	"time"
)

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
