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

// publishRaw publishes as any NATS client does.
func publishRaw(tb testing.TB, url, subject, id, body string) {
	tb.Helper()
	connection, err := nats.Connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	defer connection.Close()
	message := nats.NewMsg(subject)
	message.Header.Set(nats.MsgIdHdr, id)
	message.Data = []byte(body)
	if err := connection.PublishMsg(message); err != nil {
		tb.Fatal(err)
	}
	if err := connection.Flush(); err != nil {
		tb.Fatal(err)
	}
}
