package token_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTokensAreMadeListedAndRevoked(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state, clitest.ServedDigits)
	spillway := func(command string) (code int, stdout, stderr string) {
		return clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(command), "--state", state)...)
	}
	code, made, stderr := spillway("token create --name ci --role operator --team vision")
	if code != cli.ExitOK || strings.Count(made, "\n") != 1 || !strings.HasPrefix(made, "spillway_") || stderr != "" {
		t.Fatalf("got exit %d, %q, %q; want a token alone", code, made, stderr)
	}
	code, listed, _ := spillway("token list")
	if code != cli.ExitOK || strings.Contains(listed, strings.TrimSpace(made)) {
		t.Errorf("the list: exit %d, %q", code, listed)
	}
	clitest.Contains(t, "the list", listed, "ci", "operator", "vision", "owner")
	for command, said := range map[string]string{
		"token create --name ci":             "there is a token of that name already",
		"token create":                       "--name",
		"token create --name a --role owner": strings.Join(access.Roles(), ", "),
		"token create --name a/b":            "a token cannot have that name",
		"token create --name a --team A":     "a team cannot have that name",
		"token revoke nobody":                "there is no token of that name",
	} {
		if code, _, stderr := spillway(command); code == cli.ExitOK || !strings.Contains(stderr, said) {
			t.Errorf("%s: got exit %d, %q; want %q", command, code, stderr, said)
		}
	}
	if code, _, stderr := spillway("token revoke ci"); code != cli.ExitOK {
		t.Errorf("revoke: got exit %d, %q", code, stderr)
	}
	if _, listed, _ = spillway("token list"); !strings.Contains(listed, "no tokens but the owner's") {
		t.Errorf("after it was revoked: %q", listed)
	}
}
