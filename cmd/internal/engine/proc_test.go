package engine_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// peak is the highest resident memory of a process, and resident that of now.
func peak(tb testing.TB, pid int) quantity.Bytes {
	tb.Helper()
	return status(tb, pid, "VmHWM:")
}

func resident(tb testing.TB, pid int) quantity.Bytes {
	tb.Helper()
	return status(tb, pid, "VmRSS:")
}

func status(tb testing.TB, pid int, field string) quantity.Bytes {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Skipf("needs /proc: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, field); found {
			kibibytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return quantity.Bytes(kibibytes) * quantity.KiB
		}
	}
	tb.Fatalf("no %s in the status of process %d", field, pid)
	return 0
}

// dialNATS connects to the engine's NATS as the owner of its state directory.
func (e *testEngine) dialNATS() *nats.Conn {
	e.t.Helper()
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	token, err := access.ReadToken(e.state)
	if err != nil {
		e.t.Fatal(err)
	}
	connection, err := nats.Connect(stack.Addresses.NATS, nats.UserInfo(devserver.NATSOwner, token))
	if err != nil {
		e.t.Fatal(err)
	}
	return connection
}

// publishRaw publishes as any NATS client of the owner does.
func (e *testEngine) publishRaw(subject, id, body string) {
	e.t.Helper()
	connection := e.dialNATS()
	defer connection.Close()
	message := nats.NewMsg(subject)
	message.Header.Set(nats.MsgIdHdr, id)
	message.Data = []byte(body)
	if err := connection.PublishMsg(message); err != nil {
		e.t.Fatal(err)
	}
	if err := connection.Flush(); err != nil {
		e.t.Fatal(err)
	}
}
