// Package imports reads what a command mainly runs, and which modules that imports, without running it.
package imports
