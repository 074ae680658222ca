package tool

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display/displaytest"
)

func TestAttackJSONReachesNoTerminalRaw(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tool := &Tool{Out: &out}
	valid := strings.ToValidUTF8(displaytest.Hostile, "?")
	if err := tool.WriteJSON(map[string]string{"run": valid}); err != nil {
		t.Fatal(err)
	}
	if displaytest.Obeyed(strings.ReplaceAll(out.String(), "\n", "")) {
		t.Errorf("%q reaches the terminal", out.String())
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["run"] != valid {
		t.Errorf("%q reads as %q, %v, want the value itself", out.String(), back["run"], err)
	}
}
