package memory

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// took is an attempt of app/train that succeeded on a GPU of a class.
func took(task int, class string, seconds float64, input quantity.Bytes) fact.Record {
	return fact.Record{
		Run: "r", Stage: fact.StageID{App: "app", Name: "train", Build: "b"}, Task: strconv.Itoa(task), Attempt: 1,
		Venue: fact.Pool, Outcome: fact.Succeeded, At: time.Unix(int64(1000+task), 0),
		Grant: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB, GPU: quantity.Core, DeviceClass: class},
		Usage: quantity.Usage{Wall: time.Duration(seconds * float64(time.Second)), PeakMemory: quantity.GiB, Input: input},
	}
}

func TestRunTimesAreRememberedByDeviceClass(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		change  func(e *fact.Record)
		classes int
	}{
		{"a success on a GPU", func(*fact.Record) {}, 1},
		{"on a CPU", func(e *fact.Record) { e.Grant = quantity.Size{CPU: quantity.Core, Memory: quantity.GiB} }, 0},
		{"a failure", func(e *fact.Record) { e.Outcome = fact.Failed }, 0},
		{"one that took no time", func(e *fact.Record) { e.Usage.Wall = 0 }, 0},
		{"at a function", func(e *fact.Record) { e.Venue = fact.Function }, 0},
	} {
		m, e := New(), took(1, "a100", 3, 0)
		row.change(&e)
		m.Fold(e)
		known := m.Models()[0]
		if got := known.DeviceClasses(); len(got) != row.classes {
			t.Errorf("%s: times of %v are known, want %d", row.name, got, row.classes)
		}
		stored, err := json.Marshal(known)
		if err != nil || strings.Contains(string(stored), `"devices"`) != (row.classes > 0) {
			t.Errorf("%s: stored as %s, %v", row.name, stored, err)
		}
	}
}

func TestWhatIsKnownOfDevicesIsBounded(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range 3000 {
		m.Fold(took(i, fmt.Sprintf("class-%d", i%20), 3, 0))
	}
	known := m.Models()[0]
	if got := len(known.Devices); got != maxDevices {
		t.Errorf("%d classes, want %d", got, maxDevices)
	}
	for class, times := range known.Devices {
		if len(times.Values) != usage.MaxTimes || len(times.Names) != 1 {
			t.Errorf("of %s %d times by %v, want %d by their input", class, len(times.Values), times.Names, usage.MaxTimes)
		}
	}
}

// TestLargerInputsMakeNoClassSlower has h200 take half the time of a100 with the same input, and four times the inputs.
func TestLargerInputsMakeNoClassSlower(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range 64 {
		class, slower, input := "a100", 1.0, quantity.Bytes(1+i/2%4)*quantity.MiB
		if i%2 == 1 {
			class, slower, input = "h200", 0.5, 4*input
		}
		m.Fold(took(i, class, slower*10*float64(input)/float64(quantity.MiB), input))
	}
	known := m.Models()[0]
	seconds, some := known.OnDevice("h200", "a100", 30, quantity.Core)
	if !some || math.Abs(seconds-15) > 0.01 {
		t.Errorf("what takes 30 s on a100 takes %v s on h200, %v; want about 15", seconds, some)
	}
	if same, _ := known.OnDevice("a100", "a100", 30, quantity.Core); same != 30 {
		t.Errorf("on the same class it takes %v s", same)
	}
	for _, unknown := range [][2]string{{"l4", "a100"}, {"a100", "l4"}} {
		if _, some := known.OnDevice(unknown[0], unknown[1], 30, quantity.Core); some {
			t.Errorf("%v is known", unknown)
		}
	}
}
