package flag

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// AddLedger adds the flag that names the file with the URL of the ledger's database, which is a setting.
func AddLedger(flags *pflag.FlagSet, value *string) {
	set := pflag.NewFlagSet("ledger", pflag.ContinueOnError)
	set.StringVar(value, "ledger-url-file", "", "`FILE` of mode 0600 with the postgres:// URL of the database that has "+
		"the ledger (default SQLite in the state directory)")
	config.Mark(set)
	flags.AddFlagSet(set)
}

// LedgerFile returns the absolute path of the file with the URL of the ledger's database, empty for none. It refuses
// one that cannot be used, and repeats nothing of it.
func LedgerFile(given string) (string, error) {
	if given == "" {
		return "", nil
	}
	file, err := filepath.Abs(given)
	if err == nil {
		_, err = engine.LedgerURL(file)
	}
	if err != nil {
		return "", &fault.UsageError{
			Problem: "--ledger-url-file: " + err.Error(),
			Hint:    "give a file of mode 0600 that holds postgres://USER:PASSWORD@HOST:PORT/DATABASE",
		}
	}
	return file, nil
}
