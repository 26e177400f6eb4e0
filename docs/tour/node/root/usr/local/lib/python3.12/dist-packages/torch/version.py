__version__ = '2.11.0'
cuda: Optional[str] = '13.0'
