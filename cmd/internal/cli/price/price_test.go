package price_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/awsprices/awspricestest"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func execute(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"price", "refresh"}, args...)...)
	if code != wantCode {
		t.Fatalf("got exit %d, want %d: %s%s", code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

func server(t *testing.T) *awspricestest.Server {
	t.Helper()
	s := awspricestest.New(t)
	s.Spot = []awspricestest.Spot{
		{Name: "c7i.xlarge", Zone: "us-east-1a", Price: "0.070000", At: time.Now().Add(-24 * time.Hour)},
	}
	return s
}

func TestARefreshShowsWhatChangedAndWritesACatalogueThatIsRead(t *testing.T) {
	t.Parallel()
	s, out := server(t), filepath.Join(t.TempDir(), "prices.csv")
	priced := 0
	for _, row := range pricing.Default().Rows() {
		if row.Provider == "aws" && row.Region == "us-east-1" {
			priced++
		}
	}
	stdout, _ := execute(t, cli.ExitOK, "--endpoint", s.URL)
	clitest.Contains(t, "table", stdout, "nothing is written",
		fmt.Sprintf("2 changed, 4 the same, 1 new, %d kept as they were (the oldest of ", priced-6),
		"compared with the embedded catalogue",
		"AWS has no price in us-east-1 of host-on-demand c7g.xlarge, c7i.4xlarge, ",
		"lambda-x86 costs 0.000015 by the gib-second from 6,000,000,000 a month on")
	for _, row := range []string{
		"function lambda-x86 gib-second 0.000017 0.0000166667 +2.0%",
		"host-on-demand g6.xlarge hour 0.81 0.8048 +0.6%",
		"host-spot c7i.xlarge hour 0.07 - new",
	} {
		if !strings.Contains(strings.Join(strings.Fields(stdout), " "), row) {
			t.Errorf("no row %q in\n%s", row, stdout)
		}
	}
	if strings.Contains(stdout, "p4d.24xlarge  ") || strings.Contains(stdout, "lambda-arm  ") {
		t.Errorf("what is as it was has a row:\n%s", stdout)
	}

	execute(t, cli.ExitOK, "--endpoint", s.URL, "--out", out)
	file, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	written, err := pricing.Parse(file, time.Now())
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	offer, known := written.Lookup(pricing.Function, "us-east-1", "lambda-x86")
	if !known || offer.Prices[pricing.PerGiBSecond] != 17*quantity.USD/1_000_000 {
		t.Errorf("got %+v, want $0.000017", offer)
	}
	if _, known := written.Lookup(pricing.OnDemandHost, "us-east-1", "p5.48xlarge"); !known {
		t.Error("what AWS names no price of is lost")
	}

	stdout, _ = execute(t, cli.ExitOK, "--endpoint", s.URL, "--out", out, "--json")
	var second struct {
		Changes []struct{ Name, Change, Dated string }
		Out     string
	}
	if err := json.Unmarshal([]byte(stdout), &second); err != nil {
		t.Fatal(err)
	}
	for _, c := range second.Changes {
		if c.Change != "same" && c.Change != "kept" {
			t.Errorf("a second time: got %+v", c)
		}
	}
	if second.Out != out || len(second.Changes) == 0 {
		t.Errorf("got %+v", second)
	}
}

func TestARefreshThatCannotBeIsRefusedAndWritesNothing(t *testing.T) {
	t.Parallel()
	yuan := server(t)
	for _, d := range awspricestest.Dimensions(yuan.Find(t, "AWS-Lambda-Duration")) {
		d["pricePerUnit"] = map[string]any{"CNY": "0.00011"}
	}
	expired := server(t)
	expired.Refuse, expired.Message = "ExpiredTokenException", "The security token included in the request is expired"
	denied := server(t)
	denied.Refuse, denied.Message = "AccessDeniedException", "User: a is not authorized to perform: pricing:GetProducts"
	broken := clitest.Write(t, "prices.csv", "kind,price\n")
	for name, tt := range map[string]struct {
		code  int
		args  []string
		wants []string
	}{
		"a region that AWS lacks": {
			cli.ExitFailure,
			[]string{"--endpoint", server(t).URL, "--region", "xx-north-1"},
			[]string{"no prices of the region xx-north-1", "--region"},
		},
		"a region that is none": {
			cli.ExitUsage, []string{"--endpoint", server(t).URL, "--region", "Mars"}, []string{`"Mars" is no region`},
		},
		"another currency": {
			cli.ExitFailure, []string{"--endpoint", yuan.URL}, []string{"not in US dollars", "CNY", "by hand"},
		},
		"expired credentials": {
			cli.ExitFailure, []string{"--endpoint", expired.URL}, []string{"the AWS credentials have expired"},
		},
		"no rights": {
			cli.ExitFailure, []string{"--endpoint", denied.URL}, []string{"pricing:GetProducts", "deploy/aws/template.yaml"},
		},
		"nobody there": {cli.ExitFailure, []string{"--endpoint", "http://127.0.0.1:1"}, []string{"does not answer"}},
		"a file that is no catalogue": {
			cli.ExitUsage, []string{"--endpoint", server(t).URL, "--out", broken}, []string{"is there and is no catalogue"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "prices.csv")
			args := tt.args
			if name != "a file that is no catalogue" {
				args = append(args, "--out", out)
			}
			_, stderr := execute(t, tt.code, args...)
			clitest.Contains(t, "error", stderr, append(tt.wants, "hint: ")...)
			if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was written: %v", err)
			}
		})
	}
}

func TestTheDestinationIsLookedAtBeforeAWSIsAsked(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "nowhere", "prices.csv")
	_, stderr := execute(t, cli.ExitUsage, "--endpoint", "http://127.0.0.1:1", "--out", out)
	clitest.Contains(t, "error", stderr, "--out", "nowhere", "hint: ")
}
