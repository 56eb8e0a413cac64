"""The runtime of exported files, in parts; a file gets those it uses, without the imports of one another."""
