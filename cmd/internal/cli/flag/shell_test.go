package flag_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
)

// words are written as they are shown here.
var words = map[string]string{
	"": `''`, "myapp": "myapp", "./apps/a-b_c.d": "./apps/a-b_c.d", "lr=1e-4,x@y:50%+": "lr=1e-4,x@y:50%+",
	"my app": "'my app'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "~": "'~'", "*": "'*'", `a\b`: `'a\b'`,
	"{lr}":  "'{lr}'",
	"größe": "'größe'", "a\nb's": `$'a\nb\'s'`, "a\\\n": `$'a\\\n'`, "\x1b[2J9": `$'\033[2J9'`, "\xff7": `$'\3777'`,
	"a\u202eb": `$'a\342\200\256b'`, "\t": `$'\011'`,
}

func TestAWordIsWrittenAsAShellReadsIt(t *testing.T) {
	t.Parallel()
	for word, want := range words {
		got := flag.ShellWords(word)
		if got != want {
			t.Errorf("%q is written as %s, want %s", word, got, want)
		}
		if cleaned := display.Clean(got); cleaned != got {
			t.Errorf("%s is shown as %s", got, cleaned)
		}
	}
	if got := flag.ShellWords("echo", "", "a b"); got != "echo '' 'a b'" {
		t.Errorf("got %s", got)
	}
}

func TestAShellReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	var all []string
	for word := range words {
		all = append(all, word)
	}
	//nolint:gosec // what is run is what is tested
	read, err := exec.CommandContext(t.Context(), bash, "-c", `printf '%s\0' `+flag.ShellWords(all...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(all, "\x00") + "\x00"; string(read) != want {
		t.Errorf("bash reads %q, want %q", read, want)
	}
}

func TestFlagsAreTypedAsAShellTakesThem(t *testing.T) {
	t.Parallel()
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	set.String("name", "", "")
	set.StringArray("env", nil, "")
	set.Bool("quiet", false, "")
	set.Bool("spill", true, "")
	set.Int("cpu", 0, "")
	given := []string{"--name", "", "--env", "A=b c", "--env", "B=x\ny", "--quiet", "--spill=false"}
	if err := set.Parse(given); err != nil {
		t.Fatal(err)
	}
	if got, want := flag.Typed(set), `--env 'A=b c' --env $'B=x\ny' --name '' --quiet --spill=false`; got != want {
		t.Errorf("typed as %s, want %s", got, want)
	}
}
