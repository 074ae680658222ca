package awslambda

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAReportIsReadFromTheEndOfALog(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		log  string
		want Report
	}{
		{"none", "START RequestId: a\nEND RequestId: a\n", Report{}},
		{
			"warm",
			"START RequestId: a Version: $LATEST\nEND RequestId: a\nREPORT RequestId: a\tDuration: 3.21 ms\tBilled Duration: " +
				"4 ms\tMemory Size: 512 MB\tMax Memory Used: 33 MB\t\n",
			Report{Duration: 3210 * time.Microsecond, BilledDuration: 4 * time.Millisecond, MemorySizeMB: 512, MaxMemoryMB: 33},
		},
		{
			"cold, with fields that are not known",
			"REPORT RequestId: a\tDuration: 1.00 ms\tBilled Duration: 102 ms\tMemory Size: 128 MB\tMax Memory Used: 33 " +
				"MB\tInit Duration: 100.50 ms\tRestore Duration: 5 ms\t\nXRAY TraceId: b\t\n",
			Report{
				Duration: time.Millisecond, BilledDuration: 102 * time.Millisecond, InitDuration: 100500 * time.Microsecond,
				MemorySizeMB: 128, MaxMemoryMB: 33,
			},
		},
		{
			"lost, and printed by the function before",
			"REPORT RequestId: fake\tDuration: 9 ms\nREPORT RequestId: a\tDuration: 1000.00 ms\tBilled Duration: 1000 " +
				"ms\tMemory Size: 128 MB\tMax Memory Used: 129 MB\tStatus: error\tError Type: Runtime.OutOfMemory\n",
			Report{
				Duration: time.Second, BilledDuration: time.Second, MemorySizeMB: 128, MaxMemoryMB: 129, Status: "error",
				ErrorType: "Runtime.OutOfMemory",
			},
		},
		{"unreadable", "REPORT RequestId: a\tDuration: soon\tMemory Size: much", Report{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, parseReport(tt.log)); diff != "" {
				t.Errorf("report of %q (-want +got):\n%s", tt.log, diff)
			}
		})
	}
}

func TestAFunctionNameIsOneThatLambdaAcceptsAndKeepsTheDigestAndTheSize(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("0123456789abcdef", 4)
	if got, want := functionNameOf("spillway", "my app/α", digest, "", 1769),
		"spillway-my-app----0123456789ab-1769"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		app := rapid.String().Draw(t, "app")
		prefix := rapid.StringMatching(`[a-zA-Z0-9_-]{1,20}`).Draw(t, "prefix")
		place := PlaceOf(rapid.SampledFrom([]string{"", "s3://bucket/a"}).Draw(t, "place"))
		got := functionNameOf(prefix, app, digest, place, rapid.SampledFrom(Classes()).Draw(t, "memory"))
		if len(got) > 64 || !strings.Contains(got, place) || clean(got) != got || !strings.Contains(got, "-0123456789ab-") {
			t.Errorf("app %q: got name %q", app, got)
		}
	})
}

func TestTheNextStepFollowsFromTheStateOfAFunction(t *testing.T) {
	t.Parallel()
	want := &lambda.CreateFunctionInput{
		Description: aws.String("spillway build sha256:x"), Role: aws.String("r"), Timeout: aws.Int32(9),
		MemorySize:  aws.Int32(512),
		Environment: &types.Environment{Variables: map[string]string{"A": "b"}},
	}
	state := func(change func(*lambda.GetFunctionConfigurationOutput)) *lambda.GetFunctionConfigurationOutput {
		s := &lambda.GetFunctionConfigurationOutput{
			Description: want.Description, Role: want.Role, Timeout: want.Timeout, MemorySize: want.MemorySize,
			State:       types.StateActive,
			Environment: &types.EnvironmentResponse{Variables: map[string]string{"A": "b"}},
		}
		change(s)
		return s
	}
	for _, tt := range []struct {
		name  string
		state *lambda.GetFunctionConfigurationOutput
		step  step
		err   string
	}{
		{"active as wanted", state(func(*lambda.GetFunctionConfigurationOutput) {}), done, ""},
		{"idle for weeks", state(func(s *lambda.GetFunctionConfigurationOutput) { s.State = types.StateInactive }), done, ""},
		{"pending", state(func(s *lambda.GetFunctionConfigurationOutput) { s.State = types.StatePending }), await, ""},
		{"updating", state(func(s *lambda.GetFunctionConfigurationOutput) {
			s.LastUpdateStatus = types.LastUpdateStatusInProgress
		}), await, ""},
		{"other environment", state(func(s *lambda.GetFunctionConfigurationOutput) { s.Environment = nil }), configure, ""},
		{"other timeout", state(func(s *lambda.GetFunctionConfigurationOutput) { s.Timeout = aws.Int32(8) }), configure, ""},
		{"other code", state(func(s *lambda.GetFunctionConfigurationOutput) { s.Description = nil }), done, "other code"},
		{"failed", state(func(s *lambda.GetFunctionConfigurationOutput) {
			s.State, s.StateReason = types.StateFailed, aws.String("no such role")
		}), done, "no such role"},
	} {
		got, err := nextStep(&deployment{want: want}, tt.state)
		if got != tt.step || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got step %d, error %v, want %d, %q", tt.name, got, err, tt.step, tt.err)
		}
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{
		{Timeout: time.Hour},
		{Timeout: -1},
		{Timeout: 1500 * time.Millisecond},
		{Prefix: "a b"},
		{Prefix: strings.Repeat("p", 21)},
	} {
		if _, err := New(t.Context(), opts); err == nil {
			t.Errorf("New(%+v): got no error", opts)
		}
	}
}

func TestTheZipOfABinaryIsAlwaysTheSame(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := zipBinary(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	b, err := zipBinary(path)
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(a, b) {
		t.Error("two zips of the same binary differ")
	}
}

func TestAZipIsKeptForALittleWhile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var zips zipCache
		get := func() []byte {
			zip, err := zips.get(Build{Digest: "d", Path: path})
			if err != nil {
				t.Fatal(err)
			}
			return zip
		}
		kept := func() []byte {
			zips.mu.Lock()
			defer zips.mu.Unlock()
			return zips.zip
		}
		first := get()
		time.Sleep(zipKept - time.Second)
		if again := get(); &again[0] != &first[0] {
			t.Error("the zip was made again for the next class")
		}
		time.Sleep(zipKept - time.Second)
		if kept() == nil {
			t.Error("the zip is gone before nobody used it for so long")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if kept() != nil {
			t.Errorf("%d bytes are kept that nobody uses", len(kept()))
		}
		if again := get(); !cmp.Equal(again, first) {
			t.Error("the zip that is made again is another one")
		}
		zips.ending.Stop()
	})
}

func TestAFlightIsSharedAndPassedOnByACallerWhoGivesUp(t *testing.T) {
	t.Parallel()
	var f flight[int]
	started, release := make(chan struct{}), make(chan error)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.do(t.Context(), "k", func() (int, error) { close(started); return 0, <-release })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("first caller: got %v, want its own cancellation", err)
		}
	})
	<-started
	for range 4 {
		wg.Go(func() {
			if got, err := f.do(t.Context(), "k", func() (int, error) { return 7, nil }); got != 7 || err != nil {
				t.Errorf("later caller: got %d, %v, want 7", got, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.do(ctx, "k", func() (int, error) { return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("caller who does not wait: got %v, want canceled", err)
	}
	release <- context.Canceled
	wg.Wait()
}
