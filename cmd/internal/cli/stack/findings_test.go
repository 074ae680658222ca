package stack_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
)

func TestDoctorNeverShowsAValueOfAWS(t *testing.T) {
	t.Parallel()
	var out, complaints bytes.Buffer
	environment := map[string]string{
		"AWS_SECRET_ACCESS_KEY": "tops3cret", "AWS_ENDPOINT_URL_LAMBDA": "http://10.1.2.3",
		"HOME": t.TempDir(),
	}
	deps := tool.Deps{Version: "v0.1.0", Environment: func(name string) (string, bool) {
		value, set := environment[name]
		return value, set
	}}
	code := cli.Execute(t.Context(), []string{"doctor", "--json", "--state", t.TempDir()}, &out, &complaints, deps)
	var findings []struct{ Found string }
	if err := json.Unmarshal(out.Bytes(), &findings); err != nil || code != cli.ExitOK || len(findings) < 10 {
		t.Fatalf("got exit %d, %v, %s%s", code, err, &out, &complaints)
	}
	if last := findings[len(findings)-1]; last.Found != "configured by AWS_ENDPOINT_URL_LAMBDA, AWS_SECRET_ACCESS_KEY" {
		t.Errorf("got %+v", last)
	}
	if strings.Contains(out.String(), "tops3cret") || strings.Contains(out.String(), "10.1.2.3") {
		t.Errorf("a value is shown: %s", &out)
	}
}

func TestDoctorFailsWithAProblem(t *testing.T) {
	t.Parallel()
	var out, complaints bytes.Buffer
	state := filepath.Join(transfertest.DirectoryOf(t, map[string]string{"file": ""}), "file", "state")
	if code := cli.Execute(t.Context(), []string{"doctor", "--state", state}, &out, &complaints, tool.Deps{}); code !=
		cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	if !strings.Contains(out.String(), "-> choose another with --state DIR") || complaints.Len() > 0 {
		t.Errorf("got %s%s", &out, &complaints)
	}
}
