package natstest_test

import (
	"net"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/natstest"
)

func TestAServerWaitsForThePortThatSomebodyElseHas(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	address := s.Embedded().Addr().String()
	s.Stop()
	other, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("somebody else has the port: %v", err)
	}
	time.AfterFunc(time.Second, func() { _ = other.Close() })
	s.Restart()
	if got := s.Embedded().Addr().String(); got != address {
		t.Errorf("the server is at %s, and was at %s", got, address)
	}
}
