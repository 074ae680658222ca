package function

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAnAnswerFollowsFromHowTheInvocationEnded(t *testing.T) {
	t.Parallel()
	ok := &answer{payload: []byte("1")}
	failed := &answer{payload: []byte(`{"errorType":"E"}`), failed: true, errorType: "E"}
	for _, tt := range []struct {
		name   string
		end    ending
		posted *answer
		want   string
	}{
		{"finished with a payload", finished, ok, `1`},
		{"finished with an error", finished, failed, `{"errorType":"E"}`},
		{"exit after an error: the error stands", exited, failed, `{"errorType":"E"}`},
		{
			"exit after a payload: the invocation was not complete", exited, ok,
			`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: id Error: Runtime exited with error: signal: killed"}`,
		},
		{
			"exit without an answer", exited, nil,
			`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: id Error: Runtime exited with error: signal: killed"}`,
		},
		{
			"timeout after a payload", timedOut, ok,
			`{"errorType":"Sandbox.Timedout","errorMessage":"RequestId: id Error: Task timed out after 3.00 seconds"}`,
		},
		{
			"exit before it was taken", undelivered, nil,
			`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: id Error: Runtime exited with error: signal: killed"}`,
		},
	} {
		got := judge(tt.end, tt.posted, "id", 3*time.Second, errors.New("signal: killed"))
		if diff := cmp.Diff(tt.want, string(got.payload)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got.failed != strings.Contains(tt.want, "errorType") {
			t.Errorf("%s: got failed %v", tt.name, got.failed)
		}
	}
}

func TestAReportIsWrittenAsAWSWritesIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		report report
		want   string
	}{
		{
			report{id: "i", duration: 1500*time.Microsecond + 1, memoryMB: 128, maxMemoryMB: 33},
			"REPORT RequestId: i\tDuration: 1.50 ms\tBilled Duration: 2 ms\tMemory Size: 128 MB\tMax Memory Used: 33 MB\t",
		},
		{
			report{
				id: "i", duration: time.Second, initialized: 100*time.Millisecond + 1, memoryMB: 512, status: "error",
				errorType: "E",
			},
			"REPORT RequestId: i\tDuration: 1000.00 ms\tBilled Duration: 1101 ms\tMemory Size: 512 MB\tMax Memory Used: 0 " +
				"MB\tInit Duration: 100.00 ms\tStatus: error\tError Type: E\t",
		},
	} {
		if diff := cmp.Diff(tt.want, tt.report.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestAReservationIsBothAGuaranteeAndALimit(t *testing.T) {
	t.Parallel()
	two, zero := 2, 0
	for _, tt := range []struct {
		name                       string
		busy                       int
		reserved                   *int
		unreservedBusy, unreserved int
		want                       string
	}{
		{"room left", 0, nil, 9, 10, ""},
		{"the account is full", 0, nil, 10, 10, reasonAccount},
		{"the account is full, but not the reservation", 1, &two, 10, 10, ""},
		{"the reservation is full, but not the account", 2, &two, 0, 10, reasonReserved},
		{"a reservation of nothing stops the function", 0, &zero, 0, 10, reasonReserved},
	} {
		if got := throttleReason(tt.busy, tt.reserved, tt.unreservedBusy, tt.unreserved); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestAnEventIsRetriedAsAWSRetriesIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		failures, refusals int
		refused            bool
		age, delay         time.Duration
		again              bool
	}{
		{"first error", 1, 0, false, 0, time.Minute, true},
		{"second error", 2, 0, false, 0, 2 * time.Minute, true},
		{"third error is the last", 3, 0, false, 0, 3 * time.Minute, false},
		{"first refusal", 0, 1, true, 0, time.Second, true},
		{"refusals wait longer and longer", 0, 5, true, 0, 16 * time.Second, true},
		{"but not for ever longer", 0, 1000, true, 0, 5 * time.Minute, true},
		{"and not for ever", 0, 1000, true, 6 * time.Hour, 5 * time.Minute, false},
	} {
		delay, again := retryDelay(tt.failures, tt.refusals, tt.refused, tt.age)
		if delay != tt.delay || again != tt.again {
			t.Errorf("%s: got %v %v, want %v %v", tt.name, delay, again, tt.delay, tt.again)
		}
	}
}

func TestANameIsFoundInEveryFormOfIt(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]string{
		"f":                                     {"f", ""},
		"f:$LATEST":                             {"f", "$LATEST"},
		"000000000000:function:f":               {"f", ""},
		"arn:aws:lambda:us-east-1:1:function:f": {"f", ""},
		"arn:aws:lambda:us-east-1:1:function:f:7": {"f", "7"},
	} {
		if name, qualifier := splitName(in); name != want[0] || qualifier != want[1] {
			t.Errorf("%s: got %q %q, want %q", in, name, qualifier, want)
		}
	}
}

func TestTheTailOfAnyOutputIsItsEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := newOutput("f", slog.New(slog.DiscardHandler))
		var all []byte
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 4096), 0, 12).Draw(t, "writes") {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(len(all) + i)
			}
			all = append(all, p...)
			o.keep(p)
		}
		got := o.tail.Bytes()
		want := all[max(0, len(all)-maxTailBytes):]
		if string(got) != string(want) {
			t.Fatalf("tail of %d bytes: got %d bytes that differ from the end", len(all), len(got))
		}
	})
}
