package flag

import (
	"path/filepath"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// LedgerVariable is the environment variable that stands for --ledger-url-file.
const LedgerVariable = "SPILLWAY_LEDGER_URL_FILE"

// LedgerFile returns the absolute path of the file with the URL of the ledger's database: the one that the flag gives,
// else that of the environment, empty for neither. It refuses one that cannot be used, and repeats nothing of it.
func LedgerFile(given string, environment func(string) (string, bool)) (string, error) {
	source := "--ledger-url-file"
	if given == "" {
		given, _ = environment(LedgerVariable)
		source = LedgerVariable
	}
	if given == "" {
		return "", nil
	}
	file, err := filepath.Abs(given)
	if err == nil {
		_, err = engine.LedgerURL(file)
	}
	if err != nil {
		return "", &fault.UsageError{
			Problem: source + ": " + err.Error(),
			Hint:    "give a file of mode 0600 that holds postgres://USER:PASSWORD@HOST:PORT/DATABASE",
		}
	}
	return file, nil
}
