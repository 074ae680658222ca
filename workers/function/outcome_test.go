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
