package engine

import (
	"context"
	"fmt"
	"os"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
)

// LedgerURL reads the URL of the ledger's database from a file, which must be one that others cannot read: there is a
// password in it. It is read again for each connection.
func LedgerURL(file string) (string, error) {
	const most = 4096
	text, err := secrecy.ReadFile(file, most)
	if err != nil {
		return "", fmt.Errorf("read the URL of the ledger's database: %w", err)
	}
	return string(text), nil
}

// openDatabase opens the ledger where that is in a database of somebody else's; nil where it is in a file. It comes
// before anything is started: what is wrong about an address is said at once.
func openDatabase(ctx context.Context, life *lifecycle, config *Config) (*ledgerstore.Store, error) {
	if config.Ledger == "" {
		return nil, nil //nolint:nilnil // it is in a file then
	}
	url := func() (string, error) { return LedgerURL(config.Ledger) }
	ledger, err := ledgerstore.OpenPostgres(ctx, url, &ledgerstore.Options{
		Led: true, Deposed: life.lead.deposed, Logger: life.logger,
	})
	if err != nil {
		return nil, err
	}
	life.onClose("the ledger", func(context.Context) error { return ledger.Close() })
	if _, err := os.Stat(ledgerstore.Path(config.StateDir)); err == nil && ledger.Cursor() == 0 {
		life.logger.WarnContext(ctx, "the ledger in PostgreSQL is empty, and the state directory has one in a file: "+
			"spillway ledger copy takes over what that has", "ledger", ledger.String())
	}
	return ledger, nil
}
