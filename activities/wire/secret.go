package wire

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// secretForm is what a secret may be called.
var secretForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

// reservedVariables are those that no secret becomes: what starts or finds programs, and what Spillway says.
var reservedVariables = regexp.MustCompile(`^(PATH|HOME|TMPDIR|LANG|TZ|SHELL|USER|IFS|ENV|BASH_ENV)$|` +
	`^(LD|DYLD|SPILLWAY|DOCKER|CONTAINER|XDG|PYTHON|CUDA|LC)_|` +
	`^PYTHON(PATH|HOME|STARTUP)$|^GO(MAXPROCS|MEMLIMIT|GC|DEBUG)$`)

// CheckSecret refuses what is no name of a secret.
func CheckSecret(name string) error {
	if !secretForm.MatchString(name) {
		return fmt.Errorf("secret %q: use a lower-case word of letters, digits, '-' and '_', at most 64, such as "+
			"openai-api-key", name)
	}
	if variable := SecretVariable(name); reservedVariables.MatchString(variable) {
		return fmt.Errorf("secret %q would be the variable %s, which means something else to programs: use another name",
			name, variable)
	}
	return nil
}

// CheckSecrets refuses names that CheckSecret does, and those that are one variable.
func CheckSecrets(names []string) error {
	by := map[string]string{}
	for _, name := range names {
		if err := CheckSecret(name); err != nil {
			return err
		}
		variable := SecretVariable(name)
		if other, twice := by[variable]; twice {
			return fmt.Errorf("secrets %q and %q are both the variable %s: use one of them", other, name, variable)
		}
		by[variable] = name
	}
	return nil
}

// SecretVariable is the variable in which a program finds a secret: OPENAI_API_KEY for openai-api-key.
func SecretVariable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Masked stands for a secret in what an attempt prints.
const Masked = "(secret)"

// leastMasked is the length, in bytes, from which on a line of a secret is masked: shorter ones are in many texts that
// tell nothing.
const leastMasked = 6

// Mask takes secrets out of texts: each line of them, as they are. What a program makes of a secret, such as base64, is
// another text. Nil masks nothing.
type Mask struct{ secrets [][]byte } // the longest first

// NewMask returns a mask of the values of secrets; nil where there is nothing to mask.
func NewMask(secrets map[string]string) *Mask {
	var m Mask
	for value := range maps.Values(secrets) {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= leastMasked {
				m.secrets = append(m.secrets, []byte(line))
			}
		}
	}
	if len(m.secrets) == 0 {
		return nil
	}
	slices.SortFunc(m.secrets, func(a, b []byte) int { return len(b) - len(a) })
	return &m
}

// Text returns text without the secrets.
func (m *Mask) Text(text string) string {
	if m == nil {
		return text
	}
	return string(m.replace([]byte(text)))
}

// Cut returns what can be told of a text that goes on: without the secrets, and without its end where that may be the
// beginning of one, which is the rest.
func (m *Mask) Cut(text []byte) (masked, rest []byte) {
	if m == nil {
		return text, nil
	}
	text = m.replace(text)
	keep := 0
	for _, secret := range m.secrets {
		for n := min(len(text), len(secret)-1); n > keep; n-- {
			if bytes.HasSuffix(text, secret[:n]) {
				keep = n
			}
		}
	}
	return text[:len(text)-keep], text[len(text)-keep:]
}

func (m *Mask) replace(text []byte) []byte {
	for _, secret := range m.secrets {
		text = bytes.ReplaceAll(text, secret, []byte(Masked))
	}
	return text
}

// Failure takes the secrets out of what an attempt says of its end.
func (m *Mask) Failure(failure *StageFailure) {
	if m == nil || failure == nil {
		return
	}
	failure.Message, failure.Stack = m.Text(failure.Message), m.Text(failure.Stack)
}
