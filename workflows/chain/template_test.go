package chain

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// nasty are values that a shell would do something about.
func nasty() []string {
	return []string{
		"", " ", "a b", "*", "~", "$HOME", "${HOME}", "$(touch pwned)", "`touch pwned`", "; touch pwned",
		"' ; touch pwned; '", `" ; touch pwned; "`,
		"a\nb", "\\", "\\\\n", "-n", "#", "&& touch pwned", "a\tb", "é", "!!", "$((1/0))", ">pwned", "EOF",
	}
}

// shellRun runs a script as a stage would, in a new directory, and returns what it printed.
func shellRun(tb testing.TB, text string, values map[string]string) string {
	tb.Helper()
	arguments, environment, err := newShellForm(text).command(func(name string) string { return values[name] })
	if err != nil {
		tb.Fatal(err)
	}
	directory := tb.TempDir()
	command := exec.CommandContext(tb.Context(), arguments[0], arguments[1:]...)
	command.Dir = directory
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere"}
	for name, value := range environment {
		command.Env = append(command.Env, name+"="+value)
	}
	printed, err := command.CombinedOutput()
	if err != nil {
		tb.Fatalf("run %q: %v\n%s", arguments, err, printed)
	}
	if _, err := os.Stat(filepath.Join(directory, "pwned")); err == nil {
		tb.Fatalf("the value %q was read as a part of the script %q", values, arguments)
	}
	return string(printed)
}

// TestAValueStaysOneWordAndIsNeverReadAsScript runs scripts with values of all sorts with the machine's own shell.
func TestAValueStaysOneWordAndIsNeverReadAsScript(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh on this machine")
	}
	for script, format := range map[string]string{
		`printf '<%s>' ${v}`:                                                  "<V>",
		`printf '<%s>' "${v}"`:                                                "<V>",
		`printf '<%s>' '${v}'`:                                                "<V>",
		`printf '<%s>' --name=${v}/x`:                                         "<--name=V/x>",
		`printf '<%s>' "a ${v} b" ${v}`:                                       "<a V b><V>",
		`printf '<%s>' "$(printf '%s.' ${v})"`:                                "<V.>",
		`printf '<%s>' "$(printf '%s.' "${v}")"`:                              "<V.>",
		"printf '<%s>' \"`printf '%s.' ${v}`\"":                               "<V.>",
		`x=${v}; printf '<%s>' "$x"`:                                          "<V>",
		"# it's ${v}\nprintf '<%s>' ${v}":                                     "<V>",
		"cat <<EOF\n<${v}>\nEOF":                                              "<V>\n",
		"cat <<-EOF; printf '<%s>' ${v}\n\t<${v}>\n\tEOF\nprintf '<%s>' ${v}": "<V>\n<V><V>",
		"cat <<A <<B\na\nA\n<${v}>\nB\nprintf '<%s>' ${v}":                    "<V>\n<V>",
		`printf '<%s>' "<<" ${v}`:                                             "<<<><V>",
		"printf '<%s>' \"a << 'b'\"\nprintf '<%s>' ${v}":                      "<a << 'b'><V>",
		`case ${v} in *) printf '<%s>' ${v};; esac`:                           "<V>",
		"printf '<%s>' $${HOME} ${v}":                                         "</nowhere><V>",
		`printf '<%s>' "\"${v}\""`:                                            `<"V">`,
		`printf '<%s>' \\${v}`:                                                `<\V>`,
		"( printf '<%s>' ${v} )":                                              "<V>",
		"f() { printf '<%s>' \"$1\" ${v}; }; f 'a b'":                         "<a b><V>",
		`printf '<%s>' a#${v} $#`:                                             "<a#V><0>",
	} {
		var text, want strings.Builder
		values := map[string]string{}
		for i, value := range nasty() {
			name := fmt.Sprintf("v%d", i)
			values[name] = value
			text.WriteString(strings.ReplaceAll(script, "${v}", "${"+name+"}") + "\nprintf '|\n'\n")
			want.WriteString(strings.ReplaceAll(format, "V", value) + "|\n")
		}
		if diff := cmp.Diff(want.String(), shellRun(t, text.String(), values)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", script, diff)
		}
	}
}

func TestNumbersCanBeReckonedWith(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		`printf %s $((${n} * 2)) ${n}`:             "63",
		`printf %s "$(( (${n}+1) * ${n} )) ${n}"`:  "12 3",
		"printf %s $((1 << ${n}))\nprintf %s ${n}": "83",
	} {
		if got := shellRun(t, script, map[string]string{"n": "3"}); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	for _, value := range []string{"1.5", "a[$(touch pwned)]", "", "0x1", "1 2", "1+1"} {
		if _, _, err := newShellForm("x=$((${n}))").command(func(string) string { return value }); err == nil {
			t.Errorf("%q was taken for a whole number", value)
		}
	}
}

// TestWhateverSurroundsItAValueIsNotReadAsScript builds scripts from pieces that open and close all kinds of quotes, in
// any order: the shell may refuse them, and a value may be split, but it is never run.
func TestWhateverSurroundsItAValueIsNotReadAsScript(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh on this machine")
	}
	pieces := []string{
		"${v}", "${v}", "${v}", `"`, `'`, "`", "$(", ")", "(", "$((", "))", "\n", " ", ";", "#", "echo ", "<<EOF\n",
		"<<'E'\n", "EOF\n", "E\n", "\\", "$${x:-", "}", "|", "case x in ", "esac",
	}
	directory := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		text := ": " + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 12).Draw(t, "pieces"), "")
		value := rapid.SampledFrom(nasty()).Draw(t, "value")
		if _, mistakes := script(text, func(name string, _ where) string { return name }); len(mistakes) > 0 {
			return
		}
		arguments, environment, err := newShellForm(text).command(func(string) string { return value })
		if err != nil {
			return // in arithmetic
		}
		command := exec.CommandContext(t.Context(), arguments[0], arguments[1:]...)
		command.Dir = directory
		command.Env = []string{"PATH=" + os.Getenv("PATH")}
		for name, value := range environment {
			command.Env = append(command.Env, name+"="+value)
		}
		_ = command.Run() // most of these scripts are nonsense
		if _, err := os.Stat(filepath.Join(directory, "pwned")); err == nil {
			t.Fatalf("%q was run by %q", value, arguments)
		}
	})
}

func TestWhatTheShellCannotTakeIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]mistake{
		"x ${v} ${w}": nil,
		"echo \\${v}": {{
			6,
			`a backslash stands before ${v}; write $${ to leave it to the shell, or \\ before it for a backslash`,
		}},
		"cat <<'E'\n${v}\nE\n${v}": {{10, "${v} stands in a here-document whose end is quoted, in which the shell replaces " +
			"nothing; take the quotes off"}},
	} {
		_, got := script(text, func(name string, _ where) string { return name })
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(mistake{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestExpandPutsValuesInThePlaceOfTheirNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                     "",
		"plain $x $$ $( ) {a}": "plain $x $$ $( ) {a}",
		"${a}":                 "<a>",
		"-${a}-${b.result.c}-": "-<a>-<b.result.c>-",
		"$${a} $$${a}":         "${a} $${a}",
		"${a}${a}":             "<a><a>",
		"a $":                  "a $",
	} {
		pieces, _ := split(text)
		if got := expand(pieces, func(name string) string { return "<" + name + ">" }); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
