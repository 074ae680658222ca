package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/config/certificate"
	"github.com/spillway-ml/spillway/cmd/internal/external"
	"github.com/spillway-ml/spillway/cmd/internal/payloads"
	"github.com/spillway-ml/spillway/cmd/internal/secrets"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
)

const (
	groupAndOthers fs.FileMode = 0o077
	mayWrite       fs.FileMode = 0o022
	// expiresSoon is how long before its end a certificate is told of.
	expiresSoon = 30 * 24 * time.Hour
)

// tryFiles looks at the directories and files that the settings name, and asks no server.
func tryFiles(all *told, state string) []finding {
	findings := []finding{tryState(state)}
	if all.file != "" {
		findings = append(findings, tryConfigFile(all)...)
	}
	all.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "state" || flag.Name == "app" || !config.IsPath(flag) || all.wrong[flag.Name] {
			return
		}
		for _, path := range valuesOf(flag) {
			if path != "" {
				findings = append(findings, tryFile(flag.Name, path))
			}
		}
	})
	findings = append(findings, tryPayloadKeys(all, state)...)
	findings = append(findings, trySecrets(all)...)
	findings = append(findings, tryTeams(all)...)
	return append(findings, tryCertificates(all)...)
}

// trySecrets says which secrets stages may name, and which of them cannot be used.
func trySecrets(all *told) []finding {
	const setting = "secrets-dir"
	dir := all.value(setting)
	if dir == "" {
		return nil
	}
	names, err := secrets.Directory(dir).List()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // which is told where files are looked at
	}
	if err != nil {
		return []finding{{
			setting, failed, oneLine(err), "write each secret into a file of its own: (umask 077; cat > " + dir + "/NAME)",
		}}
	}
	return []finding{{setting, fine, display.Count(len(names), "secret") + ": " + strings.Join(names, ", "), ""}}
}

// tryPayloadKeys says what each payload key is for, and which one is missing. The state directory knows which were
// used.
func tryPayloadKeys(all *told, state string) (findings []finding) {
	const setting = "payload-keys-file"
	var keys *payloads.Keys
	if file := all.value(setting); file != "" {
		var err error
		if keys, err = payloads.ReadKeys(file); err != nil {
			return nil // which was told before
		}
	}
	lines, err := payloads.Describe(state, keys, external.UsualRetention, time.Now())
	if err != nil {
		return []finding{{setting, failed, err.Error(), fault.AdviceOf(err)}}
	}
	for _, line := range lines {
		findings = append(findings, finding{setting, fine, line, ""})
	}
	return findings
}

// tryTeams tells the mistakes in the file of teams, but for one for which the settings were refused.
func tryTeams(all *told) (findings []finding) {
	path := all.value("teams-file")
	if path == "" {
		return nil
	}
	_, err := teams.Open(path)
	for _, mistake := range teams.MistakesOf(err) {
		at := fmt.Sprintf("%s:%d:%d", mistake.Where, mistake.Line, mistake.Column)
		if slices.ContainsFunc(all.mistakes, func(told config.Mistake) bool {
			return strings.Contains(told.String(), at+": ")
		}) {
			continue
		}
		findings = append(findings, finding{at, failed, mistake.Text, mistake.Do})
	}
	return findings // one that cannot be read is told where files are looked at
}

// tryState looks at the state directory as the engine would: where it can be written, and who else may.
func tryState(dir string) finding {
	found := examineState(dir)
	if found.Severity == problem {
		found.Severity = failed
		return found
	}
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&mayWrite != 0 {
		return finding{
			found.Check, failed, fmt.Sprintf("%s may be written by others (%s)", dir, info.Mode().Perm()), "chmod go-w " + dir,
		}
	}
	return found
}

// tryConfigFile looks at who may read the file where it holds what may be a secret.
func tryConfigFile(all *told) (findings []finding) {
	info, err := os.Stat(all.file)
	if err != nil || info.Mode().Perm()&groupAndOthers == 0 {
		return nil
	}
	all.flags.VisitAll(func(flag *pflag.Flag) {
		if config.IsSecret(flag) && config.OriginOf(flag).Source == config.File {
			findings = append(findings, finding{
				all.file, notice, fmt.Sprintf("others may read it (%s), and %s may hold a secret", info.Mode().Perm(), flag.Name),
				"chmod 0600 " + all.file + ", or say it as " + config.Variable(flag),
			})
		}
	})
	return findings
}

// isSecretFile reports whether what a setting names is a secret, by its name.
func isSecretFile(setting string) bool {
	for _, end := range []string{
		"-key", "-key-file", "-keys-file", "-credentials", "-url-file", "-token-file", "-secret-file",
	} {
		if strings.HasSuffix(setting, end) {
			return true
		}
	}
	return setting == "token-file"
}

// isOpen reports whether others may read or change a file. The group may read one that root owns, as volumes of secrets
// are.
func isOpen(info fs.FileInfo) bool {
	open := groupAndOthers
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid == 0 {
		open = 0o027
	}
	return info.Mode().Perm()&open != 0
}

// tryFile looks whether a file can be read, and whether others can where it is a secret.
func tryFile(setting, path string) finding {
	file, err := os.Open(path)
	if err != nil {
		do := "give a file that there is"
		if strings.HasSuffix(setting, "-dir") {
			do = "give a directory that there is"
		}
		if errors.Is(err, fs.ErrPermission) {
			do = "let the user of the engine read it"
		}
		return finding{setting, failed, fmt.Sprintf("%s: %v", path, fault.WithoutPath(err)), do}
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	switch {
	case err != nil:
		return finding{setting, failed, err.Error(), ""}
	case info.IsDir():
		return finding{setting, fine, path + ", a directory", ""}
	case isSecretFile(setting) && isOpen(info):
		return finding{
			setting, failed, fmt.Sprintf("%s is a secret that others may read or write (%s)", path, info.Mode().Perm()),
			"chmod 0600 " + path,
		}
	case info.Size() == 0:
		return finding{setting, failed, path + " is empty", "write it, or leave the setting out"}
	}
	return finding{setting, fine, fmt.Sprintf("%s (%s)", path, info.Mode().Perm()), ""}
}

// tryCertificates looks into the certificates that the settings name, and whether keys fit.
func tryCertificates(all *told) (findings []finding) {
	now := time.Now()
	for _, prefix := range []string{"temporal-tls-", "nats-tls-", "tls-"} {
		ca, chain, key := all.value(prefix+"ca"), all.value(prefix+"certificate"), all.value(prefix+"key")
		if ca != "" {
			findings = append(findings, certified(prefix+"ca", now, func() (certificate.Chain, error) {
				return certificate.ReadAuthority(ca)
			}))
		}
		if chain == "" || key == "" {
			continue
		}
		var names []string
		if prefix == "tls-" {
			if flag := all.flags.Lookup("advertise"); flag != nil {
				names = valuesOf(flag)
			}
		}
		findings = append(findings, certified(prefix+"certificate", now, func() (certificate.Chain, error) {
			return certificate.ReadPair(chain, key, names)
		}))
	}
	return findings
}

// certified says until when a certificate is good, or what is wrong with it.
func certified(setting string, now time.Time, read func() (certificate.Chain, error)) finding {
	chain, err := read()
	if err != nil {
		return finding{setting, failed, err.Error(), fault.AdviceOf(err)}
	}
	left := chain.NotAfter.Sub(now)
	found := finding{setting, fine, fmt.Sprintf("%s, good until %s (%d days left)", chain.Subject,
		chain.NotAfter.Format(time.DateOnly), int(left.Hours()/24)), ""}
	switch {
	case now.Before(chain.NotBefore):
		found.Severity, found.Found = failed, fmt.Sprintf("%s is good only from %s on", chain.Subject,
			chain.NotBefore.Format(time.RFC3339))
		found.Do = "see whether this machine's clock is right"
	case left <= 0:
		found.Severity, found.Found = failed, fmt.Sprintf("%s has expired on %s", chain.Subject,
			chain.NotAfter.Format(time.RFC3339))
		found.Do = "renew it"
	case left < expiresSoon:
		found.Severity, found.Do = notice, "renew it before"
	}
	return found
}
