package natsaccess

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

// TestABuildThatIsClosedBeginsNoLook has a request still being passed when its build is closed: whoever closes it must
// not wait for looks while one is added.
func TestABuildThatIsClosedBeginsNoLook(t *testing.T) {
	t.Parallel()
	connection, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	b := &tenant{
		kind: builds, account: &account{kind: builds}, connection: connection, consumers: map[consumer]int{},
		gone: make(chan map[consumer]int, 1),
	}
	for _, consumer := range b.account.consumers() {
		b.consumers[consumer] = 0
	}
	b.close()
	if _, found := b.unused(wire.LoopStream, "asked"); found || b.looking {
		t.Errorf("a consumer is free: %t, and a look began: %t; want neither", found, b.looking)
	}
}
