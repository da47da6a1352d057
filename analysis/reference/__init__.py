"""The programs that made the kept results beside them from what the tools of pipeline/ measured."""
