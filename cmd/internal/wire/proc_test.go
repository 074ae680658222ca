package wire_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// peak and resident are the highest and the present resident memory of a process.
func peak(t testing.TB, pid int) quantity.Bytes     { return status(t, pid, "VmHWM:") }
func resident(t testing.TB, pid int) quantity.Bytes { return status(t, pid, "VmRSS:") }

func status(t testing.TB, pid int, field string) quantity.Bytes {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, field); found {
			kibibytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return quantity.Bytes(kibibytes) * quantity.KiB
		}
	}
	t.Fatalf("no %s in the status of process %d", field, pid)
	return 0
}

// publishRaw publishes as any NATS client does.
func publishRaw(t testing.TB, url, subject, id, body string) {
	t.Helper()
	connection, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	message := nats.NewMsg(subject)
	message.Header.Set(nats.MsgIdHdr, id)
	message.Data = []byte(body)
	if err := connection.PublishMsg(message); err != nil {
		t.Fatal(err)
	}
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
}
