; Made from executor.c by `python -m tests.codegen.executor_ir`; do not edit.
%struct.Team = type { i64, ptr, i64, i64, i64, ptr, i64, ptr, ptr, i64, i64, [40 x i8], i64, [56 x i8], i64, [56 x i8], i32, i32, i32, [52 x i8] }
%struct.timespec = type { i64, i64 }
%struct.Launch = type { ptr, ptr, i64, i64 }
%struct.Run = type { ptr, ptr, i64, ptr, ptr }
%struct.Loop = type { i64, i64, ptr, ptr, i64 }
%struct.Change = type { ptr, i64, i64, i64 }
%struct.Arg = type { i64, ptr }
%struct.Resize = type { ptr, i64, ptr, i64, ptr, i64, ptr, i64, ptr, i64, i64, ptr, ptr, i64 }
%struct.Symbol = type { ptr, i64, i64 }
%struct.Operation = type { i64, i64, i64 }
%struct.Rule = type { i64, [6 x i64] }
%struct.Patch = type { ptr, i64, i64, i64 }

define i64 @ts_team_bytes() local_unnamed_addr #0 {
  ret i64 320
}

define void @ts_init(ptr nocapture noundef writeonly %0, i64 noundef %1, ptr noundef %2, i64 noundef %3, i64 noundef %4, i64 noundef %5) local_unnamed_addr #1 {
  store i64 %1, ptr %0, align 64
  %7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 1
  store ptr %2, ptr %7, align 8
  %8 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 2
  store i64 %3, ptr %8, align 16
  %9 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 3
  store i64 %4, ptr %9, align 8
  %10 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  store i64 %5, ptr %10, align 32
  ret void
}

define void @ts_worker(ptr noundef %0, i64 noundef %1) local_unnamed_addr #2 {
  %3 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 18
  %4 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 3
  %5 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %6 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 17
  %7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %8 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  %9 = tail call fastcc i64 @work(ptr noundef %0, i64 noundef %1) #8
  %10 = load atomic i32, ptr %3 seq_cst, align 8
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %12, label %38

12:
  %13 = phi i64 [ %35, %34 ], [ %9, %2 ]
  %14 = load i64, ptr %4, align 8
  %15 = icmp sgt i64 %14, 0
  br i1 %15, label %16, label %24

16:
  %17 = phi i64 [ %21, %20 ], [ 0, %12 ]
  %18 = load atomic i64, ptr %5 monotonic, align 64
  %19 = icmp eq i64 %18, %13
  br i1 %19, label %20, label %34

20:
  tail call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #9
  %21 = add nuw nsw i64 %17, 1
  %22 = load i64, ptr %4, align 8
  %23 = icmp slt i64 %21, %22
  br i1 %23, label %16, label %24

24:
  %25 = atomicrmw add ptr %6, i32 1 seq_cst, align 4
  %26 = load atomic i32, ptr %7 seq_cst, align 64
  %27 = load atomic i64, ptr %5 seq_cst, align 64
  %28 = icmp eq i64 %27, %13
  br i1 %28, label %29, label %32

29:
  %30 = load i64, ptr %8, align 32
  %31 = tail call i64 (i64, ...) @syscall(i64 noundef %30, ptr noundef nonnull %7, i32 noundef 128, i32 noundef %26, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %32

32:
  %33 = atomicrmw sub ptr %6, i32 1 seq_cst, align 4
  br label %34

34:
  %35 = tail call fastcc i64 @work(ptr noundef %0, i64 noundef %1) #8
  %36 = load atomic i32, ptr %3 seq_cst, align 8
  %37 = icmp eq i32 %36, 0
  br i1 %37, label %12, label %38

38:
  ret void
}

declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3

define internal fastcc i64 @work(ptr noundef %0, i64 noundef %1) unnamed_addr #2 {
  %3 = alloca %struct.timespec, align 8
  %4 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %5 = load atomic i64, ptr %4 acquire, align 64
  %6 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 5
  %7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 9
  %8 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 10
  %9 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 1
  %10 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 2
  %11 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 14
  %12 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 7
  %13 = getelementptr inbounds %struct.timespec, ptr %3, i64 0, i32 1
  br label %14

14:
  %15 = phi i64 [ 0, %2 ], [ %74, %73 ]
  %16 = phi i64 [ %5, %2 ], [ %75, %73 ]
  br label %17

17:
  %18 = phi i64 [ %25, %21 ], [ %16, %14 ]
  %19 = and i64 %18, 2147483647
  %20 = icmp eq i64 %19, 0
  br i1 %20, label %76, label %21

21:
  %22 = add i64 %18, -1
  %23 = cmpxchg weak ptr %4, i64 %18, i64 %22 acq_rel acquire, align 8
  %24 = extractvalue { i64, i1 } %23, 1
  %25 = extractvalue { i64, i1 } %23, 0
  br i1 %24, label %26, label %17

26:
  %27 = load ptr, ptr %6, align 8
  %28 = load i64, ptr %7, align 8
  %29 = getelementptr inbounds %struct.Launch, ptr %27, i64 %28
  %30 = load i64, ptr %8, align 16
  %31 = sub nsw i64 %30, %19
  %32 = getelementptr inbounds %struct.Launch, ptr %27, i64 %28, i32 2
  %33 = load i64, ptr %32, align 8
  %34 = icmp sgt i64 %33, %31
  br i1 %34, label %44, label %35

35:
  %36 = phi i64 [ %42, %35 ], [ %33, %26 ]
  %37 = phi ptr [ %40, %35 ], [ %29, %26 ]
  %38 = phi i64 [ %39, %35 ], [ %31, %26 ]
  %39 = sub nsw i64 %38, %36
  %40 = getelementptr inbounds %struct.Launch, ptr %37, i64 1
  %41 = getelementptr inbounds %struct.Launch, ptr %37, i64 1, i32 2
  %42 = load i64, ptr %41, align 8
  %43 = icmp slt i64 %39, %42
  br i1 %43, label %44, label %35

44:
  %45 = phi i64 [ %31, %26 ], [ %39, %35 ]
  %46 = phi ptr [ %29, %26 ], [ %40, %35 ]
  %47 = phi i64 [ %33, %26 ], [ %42, %35 ]
  %48 = trunc i64 %45 to i32
  %49 = trunc i64 %47 to i32
  %50 = load i64, ptr %0, align 64
  %51 = trunc i64 %50 to i32
  %52 = urem i32 %48, %51
  %53 = urem i32 %49, %51
  %54 = zext i32 %52 to i64
  %55 = udiv i32 %49, %51
  %56 = zext i32 %55 to i64
  %57 = mul nuw nsw i64 %56, %54
  %58 = call i32 @llvm.umin.i32(i32 %52, i32 %53)
  %59 = zext i32 %58 to i64
  %60 = add nuw nsw i64 %57, %59
  %61 = udiv i32 %48, %51
  %62 = zext i32 %61 to i64
  %63 = add nuw nsw i64 %60, %62
  %64 = load ptr, ptr %46, align 8
  %65 = getelementptr inbounds %struct.Launch, ptr %46, i64 0, i32 1
  %66 = load ptr, ptr %65, align 8
  %67 = load ptr, ptr %9, align 8
  %68 = load i64, ptr %10, align 16
  %69 = mul nsw i64 %68, %1
  %70 = getelementptr inbounds i8, ptr %67, i64 %69
  call void %64(ptr noundef %66, i64 noundef %63, ptr noundef %70) #10
  %71 = add nuw nsw i64 %15, 1
  %72 = load atomic i64, ptr %4 acquire, align 64
  br label %73

73:
  %74 = phi i64 [ %71, %44 ], [ 0, %133 ]
  %75 = phi i64 [ %72, %44 ], [ %134, %133 ]
  br label %14

76:
  %77 = icmp eq i64 %15, 0
  br i1 %77, label %78, label %79

78:
  ret i64 %18

79:
  %80 = load i64, ptr %7, align 8
  %81 = load ptr, ptr %6, align 8
  %82 = getelementptr inbounds %struct.Launch, ptr %81, i64 %80, i32 3
  %83 = load i64, ptr %82, align 8
  %84 = atomicrmw sub ptr %11, i64 %15 acq_rel, align 8
  %85 = icmp eq i64 %84, %15
  br i1 %85, label %86, label %133

86:
  %87 = load ptr, ptr %12, align 8
  %88 = icmp eq ptr %87, null
  br i1 %88, label %131, label %89

89:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #9
  %90 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #10
  %91 = icmp sgt i64 %83, 0
  br i1 %91, label %92, label %109

92:
  %93 = and i64 %83, 1
  %94 = icmp eq i64 %83, 1
  br i1 %94, label %97, label %95

95:
  %96 = and i64 %83, -2
  br label %110

97:
  %98 = phi i64 [ 0, %92 ], [ %126, %110 ]
  %99 = icmp eq i64 %93, 0
  br i1 %99, label %109, label %100

100:
  %101 = load i64, ptr %3, align 8
  %102 = mul nsw i64 %101, 1000000000
  %103 = load i64, ptr %13, align 8
  %104 = add nsw i64 %102, %103
  %105 = load ptr, ptr %12, align 8
  %106 = add nuw nsw i64 %98, 1
  %107 = add i64 %106, %80
  %108 = getelementptr inbounds i64, ptr %105, i64 %107
  store i64 %104, ptr %108, align 8
  br label %109

109:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #9
  br label %131

110:
  %111 = phi i64 [ 0, %95 ], [ %126, %110 ]
  %112 = phi i64 [ 0, %95 ], [ %129, %110 ]
  %113 = load i64, ptr %3, align 8
  %114 = mul nsw i64 %113, 1000000000
  %115 = load i64, ptr %13, align 8
  %116 = add nsw i64 %114, %115
  %117 = load ptr, ptr %12, align 8
  %118 = or i64 %111, 1
  %119 = add i64 %118, %80
  %120 = getelementptr inbounds i64, ptr %117, i64 %119
  store i64 %116, ptr %120, align 8
  %121 = load i64, ptr %3, align 8
  %122 = mul nsw i64 %121, 1000000000
  %123 = load i64, ptr %13, align 8
  %124 = add nsw i64 %122, %123
  %125 = load ptr, ptr %12, align 8
  %126 = add nuw nsw i64 %111, 2
  %127 = add i64 %126, %80
  %128 = getelementptr inbounds i64, ptr %125, i64 %127
  store i64 %124, ptr %128, align 8
  %129 = add nuw i64 %112, 2
  %130 = icmp eq i64 %129, %96
  br i1 %130, label %97, label %110

131:
  %132 = add nsw i64 %83, %80
  call fastcc void @advance(ptr noundef nonnull %0, i64 noundef %132, i64 noundef %1) #8
  br label %133

133:
  %134 = load atomic i64, ptr %4 acquire, align 64
  br label %73
}

declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

define void @ts_run(ptr nocapture noundef readonly %0) local_unnamed_addr #2 {
  %2 = alloca %struct.timespec, align 8
  %3 = alloca %struct.timespec, align 8
  %4 = load ptr, ptr %0, align 8
  %5 = getelementptr inbounds %struct.Run, ptr %0, i64 0, i32 1
  %6 = load ptr, ptr %5, align 8
  %7 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 5
  store ptr %6, ptr %7, align 8
  %8 = getelementptr inbounds %struct.Run, ptr %0, i64 0, i32 2
  %9 = load i64, ptr %8, align 8
  %10 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 6
  store i64 %9, ptr %10, align 16
  %11 = getelementptr inbounds %struct.Run, ptr %0, i64 0, i32 3
  %12 = load ptr, ptr %11, align 8
  %13 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 7
  store ptr %12, ptr %13, align 8
  %14 = getelementptr inbounds %struct.Run, ptr %0, i64 0, i32 4
  %15 = load ptr, ptr %14, align 8
  %16 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 8
  store ptr %15, ptr %16, align 64
  %17 = icmp eq ptr %12, null
  br i1 %17, label %26, label %18

18:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #9
  %19 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #10
  %20 = getelementptr inbounds %struct.timespec, ptr %3, i64 0, i32 1
  %21 = load i64, ptr %3, align 8
  %22 = mul nsw i64 %21, 1000000000
  %23 = load i64, ptr %20, align 8
  %24 = add nsw i64 %22, %23
  %25 = load ptr, ptr %13, align 8
  store i64 %24, ptr %25, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #9
  br label %26

26:
  %27 = load i64, ptr %4, align 64
  %28 = icmp eq i64 %27, 1
  br i1 %28, label %29, label %110

29:
  %30 = icmp sgt i64 %9, 0
  %31 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 1
  %32 = getelementptr inbounds %struct.timespec, ptr %2, i64 0, i32 1
  br label %33

33:
  br i1 %30, label %34, label %42

34:
  %35 = phi i64 [ %89, %100 ], [ 0, %33 ]
  %36 = getelementptr inbounds %struct.Launch, ptr %6, i64 %35, i32 2
  %37 = load i64, ptr %36, align 8
  %38 = icmp sgt i64 %37, 0
  br i1 %38, label %39, label %88

39:
  %40 = getelementptr inbounds %struct.Launch, ptr %6, i64 %35
  %41 = getelementptr inbounds %struct.Launch, ptr %6, i64 %35, i32 1
  br label %102

42:
  %43 = load ptr, ptr %16, align 64
  %44 = icmp eq ptr %43, null
  br i1 %44, label %146, label %45

45:
  %46 = getelementptr inbounds %struct.Loop, ptr %43, i64 0, i32 4
  %47 = load i64, ptr %46, align 8
  %48 = add nsw i64 %47, 1
  store i64 %48, ptr %46, align 8
  %49 = load i64, ptr %43, align 8
  %50 = icmp eq i64 %48, %49
  br i1 %50, label %146, label %51

51:
  %52 = getelementptr inbounds %struct.Loop, ptr %43, i64 0, i32 3
  %53 = load ptr, ptr %52, align 8
  %54 = icmp eq ptr %53, null
  br i1 %54, label %58, label %55

55:
  %56 = load i8, ptr %53, align 1
  %57 = icmp eq i8 %56, 0
  br i1 %57, label %146, label %58

58:
  %59 = getelementptr inbounds %struct.Loop, ptr %43, i64 0, i32 1
  %60 = load i64, ptr %59, align 8
  %61 = icmp sgt i64 %60, 0
  br i1 %61, label %62, label %64

62:
  %63 = getelementptr inbounds %struct.Loop, ptr %43, i64 0, i32 2
  br label %68

64:
  %65 = load ptr, ptr %13, align 8
  %66 = icmp eq ptr %65, null
  br i1 %66, label %67, label %85

67:
  br label %33

68:
  %69 = phi i64 [ 0, %62 ], [ %82, %68 ]
  %70 = load ptr, ptr %63, align 8
  %71 = getelementptr inbounds %struct.Change, ptr %70, i64 %69
  %72 = getelementptr inbounds %struct.Change, ptr %70, i64 %69, i32 1
  %73 = load i64, ptr %72, align 8
  %74 = load ptr, ptr %71, align 8
  store i64 %73, ptr %74, align 8
  %75 = load i64, ptr %72, align 8
  %76 = getelementptr inbounds %struct.Change, ptr %70, i64 %69, i32 2
  %77 = load i64, ptr %76, align 8
  %78 = add nsw i64 %77, %75
  %79 = getelementptr inbounds %struct.Change, ptr %70, i64 %69, i32 3
  %80 = load i64, ptr %79, align 8
  %81 = xor i64 %78, %80
  store i64 %81, ptr %72, align 8
  %82 = add nuw nsw i64 %69, 1
  %83 = load i64, ptr %59, align 8
  %84 = icmp slt i64 %82, %83
  br i1 %84, label %68, label %64

85:
  %86 = load i64, ptr %10, align 16
  %87 = getelementptr inbounds i64, ptr %65, i64 %86
  store ptr %87, ptr %13, align 8
  br label %67

88:
  %89 = add nuw nsw i64 %35, 1
  %90 = load ptr, ptr %13, align 8
  %91 = icmp eq ptr %90, null
  br i1 %91, label %100, label %92

92:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #9
  %93 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #10
  %94 = load i64, ptr %2, align 8
  %95 = mul nsw i64 %94, 1000000000
  %96 = load i64, ptr %32, align 8
  %97 = add nsw i64 %95, %96
  %98 = load ptr, ptr %13, align 8
  %99 = getelementptr inbounds i64, ptr %98, i64 %89
  store i64 %97, ptr %99, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #9
  br label %100

100:
  %101 = icmp eq i64 %89, %9
  br i1 %101, label %42, label %34

102:
  %103 = phi i64 [ 0, %39 ], [ %107, %102 ]
  %104 = load ptr, ptr %40, align 8
  %105 = load ptr, ptr %41, align 8
  %106 = load ptr, ptr %31, align 8
  call void %104(ptr noundef %105, i64 noundef %103, ptr noundef %106) #10
  %107 = add nuw nsw i64 %103, 1
  %108 = load i64, ptr %36, align 8
  %109 = icmp slt i64 %107, %108
  br i1 %109, label %102, label %88

110:
  call fastcc void @advance(ptr noundef nonnull %4, i64 noundef 0, i64 noundef 0) #8
  %111 = call fastcc i64 @work(ptr noundef nonnull %4, i64 noundef 0) #8
  %112 = and i64 %111, 2147483648
  %113 = icmp eq i64 %112, 0
  br i1 %113, label %114, label %146

114:
  %115 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 3
  %116 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 12
  %117 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 17
  %118 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 16
  %119 = getelementptr inbounds %struct.Team, ptr %4, i64 0, i32 4
  br label %120

120:
  %121 = phi i64 [ %111, %114 ], [ %143, %142 ]
  %122 = load i64, ptr %115, align 8
  %123 = icmp sgt i64 %122, 0
  br i1 %123, label %124, label %132

124:
  %125 = phi i64 [ %129, %128 ], [ 0, %120 ]
  %126 = load atomic i64, ptr %116 monotonic, align 64
  %127 = icmp eq i64 %126, %121
  br i1 %127, label %128, label %142

128:
  call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #9
  %129 = add nuw nsw i64 %125, 1
  %130 = load i64, ptr %115, align 8
  %131 = icmp slt i64 %129, %130
  br i1 %131, label %124, label %132

132:
  %133 = atomicrmw add ptr %117, i32 1 seq_cst, align 4
  %134 = load atomic i32, ptr %118 seq_cst, align 64
  %135 = load atomic i64, ptr %116 seq_cst, align 64
  %136 = icmp eq i64 %135, %121
  br i1 %136, label %137, label %140

137:
  %138 = load i64, ptr %119, align 32
  %139 = call i64 (i64, ...) @syscall(i64 noundef %138, ptr noundef nonnull %118, i32 noundef 128, i32 noundef %134, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %140

140:
  %141 = atomicrmw sub ptr %117, i32 1 seq_cst, align 4
  br label %142

142:
  %143 = call fastcc i64 @work(ptr noundef nonnull %4, i64 noundef 0) #8
  %144 = and i64 %143, 2147483648
  %145 = icmp eq i64 %144, 0
  br i1 %145, label %120, label %146

146:
  ret void
}

define internal fastcc void @advance(ptr noundef %0, i64 noundef %1, i64 noundef %2) unnamed_addr #2 {
  %4 = alloca %struct.timespec, align 8
  %5 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 8
  %6 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 6
  %7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 7
  %8 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 5
  %9 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 1
  %10 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 2
  %11 = getelementptr inbounds %struct.timespec, ptr %4, i64 0, i32 1
  br label %12

12:
  %13 = phi i64 [ 0, %3 ], [ %159, %205 ]
  %14 = phi i64 [ %1, %3 ], [ %207, %205 ]
  %15 = load i64, ptr %6, align 16
  %16 = icmp eq i64 %14, %15
  br i1 %16, label %17, label %62

17:
  %18 = load ptr, ptr %5, align 64
  %19 = icmp eq ptr %18, null
  br i1 %19, label %208, label %20

20:
  %21 = getelementptr inbounds %struct.Loop, ptr %18, i64 0, i32 4
  %22 = load i64, ptr %21, align 8
  %23 = add nsw i64 %22, 1
  store i64 %23, ptr %21, align 8
  %24 = load i64, ptr %18, align 8
  %25 = icmp eq i64 %23, %24
  br i1 %25, label %208, label %26

26:
  %27 = getelementptr inbounds %struct.Loop, ptr %18, i64 0, i32 3
  %28 = load ptr, ptr %27, align 8
  %29 = icmp eq ptr %28, null
  br i1 %29, label %33, label %30

30:
  %31 = load i8, ptr %28, align 1
  %32 = icmp eq i8 %31, 0
  br i1 %32, label %208, label %33

33:
  %34 = getelementptr inbounds %struct.Loop, ptr %18, i64 0, i32 1
  %35 = load i64, ptr %34, align 8
  %36 = icmp sgt i64 %35, 0
  br i1 %36, label %37, label %39

37:
  %38 = getelementptr inbounds %struct.Loop, ptr %18, i64 0, i32 2
  br label %42

39:
  %40 = load ptr, ptr %7, align 8
  %41 = icmp eq ptr %40, null
  br i1 %41, label %62, label %59

42:
  %43 = phi i64 [ 0, %37 ], [ %56, %42 ]
  %44 = load ptr, ptr %38, align 8
  %45 = getelementptr inbounds %struct.Change, ptr %44, i64 %43
  %46 = getelementptr inbounds %struct.Change, ptr %44, i64 %43, i32 1
  %47 = load i64, ptr %46, align 8
  %48 = load ptr, ptr %45, align 8
  store i64 %47, ptr %48, align 8
  %49 = load i64, ptr %46, align 8
  %50 = getelementptr inbounds %struct.Change, ptr %44, i64 %43, i32 2
  %51 = load i64, ptr %50, align 8
  %52 = add nsw i64 %51, %49
  %53 = getelementptr inbounds %struct.Change, ptr %44, i64 %43, i32 3
  %54 = load i64, ptr %53, align 8
  %55 = xor i64 %52, %54
  store i64 %55, ptr %46, align 8
  %56 = add nuw nsw i64 %43, 1
  %57 = load i64, ptr %34, align 8
  %58 = icmp slt i64 %56, %57
  br i1 %58, label %42, label %39

59:
  %60 = load i64, ptr %6, align 16
  %61 = getelementptr inbounds i64, ptr %40, i64 %60
  store ptr %61, ptr %7, align 8
  br label %62

62:
  %63 = phi i64 [ %14, %12 ], [ 0, %39 ], [ 0, %59 ]
  %64 = load ptr, ptr %8, align 8
  %65 = getelementptr inbounds %struct.Launch, ptr %64, i64 %63
  %66 = getelementptr inbounds %struct.Launch, ptr %64, i64 %63, i32 3
  %67 = load i64, ptr %66, align 8
  %68 = icmp sgt i64 %67, 0
  br i1 %68, label %69, label %157

69:
  %70 = and i64 %67, 3
  %71 = icmp ult i64 %67, 4
  br i1 %71, label %96, label %72

72:
  %73 = and i64 %67, -4
  br label %74

74:
  %75 = phi i64 [ 0, %72 ], [ %93, %74 ]
  %76 = phi i64 [ 0, %72 ], [ %92, %74 ]
  %77 = phi i64 [ 0, %72 ], [ %94, %74 ]
  %78 = getelementptr inbounds %struct.Launch, ptr %65, i64 %75, i32 2
  %79 = load i64, ptr %78, align 8
  %80 = add nsw i64 %79, %76
  %81 = or i64 %75, 1
  %82 = getelementptr inbounds %struct.Launch, ptr %65, i64 %81, i32 2
  %83 = load i64, ptr %82, align 8
  %84 = add nsw i64 %83, %80
  %85 = or i64 %75, 2
  %86 = getelementptr inbounds %struct.Launch, ptr %65, i64 %85, i32 2
  %87 = load i64, ptr %86, align 8
  %88 = add nsw i64 %87, %84
  %89 = or i64 %75, 3
  %90 = getelementptr inbounds %struct.Launch, ptr %65, i64 %89, i32 2
  %91 = load i64, ptr %90, align 8
  %92 = add nsw i64 %91, %88
  %93 = add nuw nsw i64 %75, 4
  %94 = add i64 %77, 4
  %95 = icmp eq i64 %94, %73
  br i1 %95, label %96, label %74

96:
  %97 = phi i64 [ undef, %69 ], [ %92, %74 ]
  %98 = phi i64 [ 0, %69 ], [ %93, %74 ]
  %99 = phi i64 [ 0, %69 ], [ %92, %74 ]
  %100 = icmp eq i64 %70, 0
  br i1 %100, label %111, label %101

101:
  %102 = phi i64 [ %108, %101 ], [ %98, %96 ]
  %103 = phi i64 [ %107, %101 ], [ %99, %96 ]
  %104 = phi i64 [ %109, %101 ], [ 0, %96 ]
  %105 = getelementptr inbounds %struct.Launch, ptr %65, i64 %102, i32 2
  %106 = load i64, ptr %105, align 8
  %107 = add nsw i64 %106, %103
  %108 = add nuw nsw i64 %102, 1
  %109 = add i64 %104, 1
  %110 = icmp eq i64 %109, %70
  br i1 %110, label %111, label %101

111:
  %112 = phi i64 [ %97, %96 ], [ %107, %101 ]
  %113 = icmp sgt i64 %112, 1
  br i1 %113, label %208, label %114

114:
  %115 = icmp eq i64 %112, 0
  br i1 %115, label %157, label %116

116:
  %117 = getelementptr inbounds %struct.Launch, ptr %64, i64 %63, i32 2
  %118 = load i64, ptr %117, align 8
  %119 = icmp sgt i64 %118, 0
  br i1 %119, label %129, label %120

120:
  %121 = phi i64 [ %127, %120 ], [ %118, %116 ]
  %122 = phi ptr [ %125, %120 ], [ %65, %116 ]
  %123 = phi i64 [ %124, %120 ], [ 0, %116 ]
  %124 = sub nsw i64 %123, %121
  %125 = getelementptr inbounds %struct.Launch, ptr %122, i64 1
  %126 = getelementptr inbounds %struct.Launch, ptr %122, i64 1, i32 2
  %127 = load i64, ptr %126, align 8
  %128 = icmp slt i64 %124, %127
  br i1 %128, label %129, label %120

129:
  %130 = phi i64 [ 0, %116 ], [ %124, %120 ]
  %131 = phi ptr [ %65, %116 ], [ %125, %120 ]
  %132 = phi i64 [ %118, %116 ], [ %127, %120 ]
  %133 = trunc i64 %130 to i32
  %134 = trunc i64 %132 to i32
  %135 = load i64, ptr %0, align 64
  %136 = trunc i64 %135 to i32
  %137 = urem i32 %133, %136
  %138 = urem i32 %134, %136
  %139 = zext i32 %137 to i64
  %140 = udiv i32 %134, %136
  %141 = zext i32 %140 to i64
  %142 = mul nuw nsw i64 %141, %139
  %143 = call i32 @llvm.umin.i32(i32 %137, i32 %138)
  %144 = zext i32 %143 to i64
  %145 = add nuw nsw i64 %142, %144
  %146 = udiv i32 %133, %136
  %147 = zext i32 %146 to i64
  %148 = add nuw nsw i64 %145, %147
  %149 = load ptr, ptr %131, align 8
  %150 = getelementptr inbounds %struct.Launch, ptr %131, i64 0, i32 1
  %151 = load ptr, ptr %150, align 8
  %152 = load ptr, ptr %9, align 8
  %153 = load i64, ptr %10, align 16
  %154 = mul nsw i64 %153, %2
  %155 = getelementptr inbounds i8, ptr %152, i64 %154
  call void %149(ptr noundef %151, i64 noundef %148, ptr noundef %155) #10
  %156 = load i64, ptr %66, align 8
  br label %157

157:
  %158 = phi i64 [ %156, %129 ], [ %67, %114 ], [ %67, %62 ]
  %159 = phi i64 [ %112, %129 ], [ 0, %114 ], [ 0, %62 ]
  %160 = load ptr, ptr %7, align 8
  %161 = icmp eq ptr %160, null
  br i1 %161, label %205, label %162

162:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #9
  %163 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #10
  %164 = icmp sgt i64 %158, 0
  br i1 %164, label %165, label %182

165:
  %166 = and i64 %158, 1
  %167 = icmp eq i64 %158, 1
  br i1 %167, label %170, label %168

168:
  %169 = and i64 %158, -2
  br label %184

170:
  %171 = phi i64 [ 0, %165 ], [ %200, %184 ]
  %172 = icmp eq i64 %166, 0
  br i1 %172, label %182, label %173

173:
  %174 = load i64, ptr %4, align 8
  %175 = mul nsw i64 %174, 1000000000
  %176 = load i64, ptr %11, align 8
  %177 = add nsw i64 %175, %176
  %178 = load ptr, ptr %7, align 8
  %179 = add nuw nsw i64 %171, 1
  %180 = add i64 %179, %63
  %181 = getelementptr inbounds i64, ptr %178, i64 %180
  store i64 %177, ptr %181, align 8
  br label %182

182:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #9
  %183 = load i64, ptr %66, align 8
  br label %205

184:
  %185 = phi i64 [ 0, %168 ], [ %200, %184 ]
  %186 = phi i64 [ 0, %168 ], [ %203, %184 ]
  %187 = load i64, ptr %4, align 8
  %188 = mul nsw i64 %187, 1000000000
  %189 = load i64, ptr %11, align 8
  %190 = add nsw i64 %188, %189
  %191 = load ptr, ptr %7, align 8
  %192 = or i64 %185, 1
  %193 = add i64 %192, %63
  %194 = getelementptr inbounds i64, ptr %191, i64 %193
  store i64 %190, ptr %194, align 8
  %195 = load i64, ptr %4, align 8
  %196 = mul nsw i64 %195, 1000000000
  %197 = load i64, ptr %11, align 8
  %198 = add nsw i64 %196, %197
  %199 = load ptr, ptr %7, align 8
  %200 = add nuw nsw i64 %185, 2
  %201 = add i64 %200, %63
  %202 = getelementptr inbounds i64, ptr %199, i64 %201
  store i64 %198, ptr %202, align 8
  %203 = add nuw i64 %186, 2
  %204 = icmp eq i64 %203, %169
  br i1 %204, label %170, label %184

205:
  %206 = phi i64 [ %183, %182 ], [ %158, %157 ]
  %207 = add nsw i64 %206, %63
  br label %12

208:
  %209 = phi i64 [ %13, %30 ], [ %13, %20 ], [ %13, %17 ], [ %112, %111 ]
  %210 = phi i64 [ %14, %30 ], [ %14, %20 ], [ %14, %17 ], [ %63, %111 ]
  %211 = load i64, ptr %6, align 16
  %212 = icmp eq i64 %210, %211
  br i1 %212, label %213, label %229

213:
  %214 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %215 = load atomic i64, ptr %214 monotonic, align 64
  %216 = and i64 %215, -4294967296
  %217 = add i64 %216, 6442450944
  store atomic i64 %217, ptr %214 seq_cst, align 64
  %218 = icmp eq i64 %2, 0
  br i1 %218, label %249, label %219

219:
  %220 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %221 = atomicrmw add ptr %220, i32 1 seq_cst, align 4
  %222 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 17
  %223 = load atomic i32, ptr %222 seq_cst, align 4
  %224 = icmp eq i32 %223, 0
  br i1 %224, label %249, label %225

225:
  %226 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  %227 = load i64, ptr %226, align 32
  %228 = call i64 (i64, ...) @syscall(i64 noundef %227, ptr noundef nonnull %220, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %249

229:
  %230 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 9
  store i64 %210, ptr %230, align 8
  %231 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 10
  store i64 %209, ptr %231, align 16
  %232 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 14
  store atomic i64 %209, ptr %232 monotonic, align 64
  %233 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %234 = load atomic i64, ptr %233 monotonic, align 64
  %235 = and i64 %234, -4294967296
  %236 = add i64 %235, 4294967296
  %237 = and i64 %209, 4294967295
  %238 = or i64 %236, %237
  store atomic i64 %238, ptr %233 seq_cst, align 64
  %239 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %240 = atomicrmw add ptr %239, i32 1 seq_cst, align 4
  %241 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 17
  %242 = load atomic i32, ptr %241 seq_cst, align 4
  %243 = icmp eq i32 %242, 0
  br i1 %243, label %249, label %244

244:
  %245 = add nsw i64 %209, -1
  %246 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  %247 = load i64, ptr %246, align 32
  %248 = call i64 (i64, ...) @syscall(i64 noundef %247, ptr noundef nonnull %239, i32 noundef 129, i64 noundef %245, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %249

249:
  ret void
}

define void @ts_stop(ptr noundef %0) local_unnamed_addr #2 {
  %2 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 18
  store atomic i32 1, ptr %2 seq_cst, align 8
  %3 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %4 = load atomic i64, ptr %3 monotonic, align 64
  %5 = and i64 %4, -4294967296
  %6 = add i64 %5, 6442450944
  store atomic i64 %6, ptr %3 seq_cst, align 64
  %7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %8 = atomicrmw add ptr %7, i32 1 seq_cst, align 4
  %9 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 17
  %10 = load atomic i32, ptr %9 seq_cst, align 4
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %16, label %12

12:
  %13 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  %14 = load i64, ptr %13, align 32
  %15 = tail call i64 (i64, ...) @syscall(i64 noundef %14, ptr noundef nonnull %7, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %16

16:
  ret void
}

define void @ts_resize(ptr nocapture noundef readonly %0, i64 noundef %1, ptr nocapture noundef readnone %2) local_unnamed_addr #4 {
  %4 = getelementptr inbounds %struct.Arg, ptr %0, i64 0, i32 1
  %5 = load ptr, ptr %4, align 8
  %6 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 13
  %7 = load i64, ptr %6, align 8
  %8 = icmp eq i64 %7, 0
  %9 = zext i1 %8 to i32
  %10 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 12
  %11 = load ptr, ptr %10, align 8
  %12 = load i32, ptr %11, align 4
  %13 = icmp eq i32 %12, 0
  br i1 %13, label %14, label %273

14:
  store i64 0, ptr %6, align 8
  %15 = load ptr, ptr %5, align 8
  %16 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 1
  %17 = load i64, ptr %16, align 8
  %18 = getelementptr inbounds i64, ptr %15, i64 %17
  %19 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 2
  %20 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 3
  %21 = load i64, ptr %20, align 8
  %22 = icmp slt i64 %21, 1
  br i1 %22, label %50, label %23

23:
  %24 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 11
  br label %25

25:
  %26 = phi i32 [ %9, %23 ], [ %44, %39 ]
  %27 = phi i64 [ 0, %23 ], [ %47, %39 ]
  %28 = load ptr, ptr %19, align 8
  %29 = getelementptr inbounds %struct.Symbol, ptr %28, i64 %27
  %30 = load ptr, ptr %29, align 8
  %31 = load i64, ptr %30, align 8
  %32 = getelementptr inbounds %struct.Symbol, ptr %28, i64 %27, i32 1
  %33 = load i64, ptr %32, align 8
  %34 = icmp slt i64 %31, %33
  br i1 %34, label %273, label %35

35:
  %36 = getelementptr inbounds %struct.Symbol, ptr %28, i64 %27, i32 2
  %37 = load i64, ptr %36, align 8
  %38 = icmp sgt i64 %31, %37
  br i1 %38, label %273, label %39

39:
  %40 = getelementptr inbounds i64, ptr %18, i64 %27
  %41 = load i64, ptr %40, align 8
  %42 = icmp ne i64 %41, %31
  %43 = zext i1 %42 to i32
  %44 = or i32 %26, %43
  %45 = load ptr, ptr %24, align 8
  %46 = getelementptr inbounds i64, ptr %45, i64 %27
  store i64 %31, ptr %46, align 8
  store i64 %31, ptr %40, align 8
  %47 = add nuw nsw i64 %27, 1
  %48 = load i64, ptr %20, align 8
  %49 = icmp slt i64 %47, %48
  br i1 %49, label %25, label %50

50:
  %51 = phi i64 [ %21, %14 ], [ %48, %39 ]
  %52 = phi i32 [ %9, %14 ], [ %44, %39 ]
  %53 = icmp eq i32 %52, 0
  br i1 %53, label %130, label %54

54:
  %55 = load ptr, ptr %5, align 8
  %56 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 5
  %57 = load i64, ptr %56, align 8
  %58 = icmp slt i64 %57, 1
  br i1 %58, label %130, label %59

59:
  %60 = load i64, ptr %16, align 8
  %61 = add nsw i64 %60, %51
  %62 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 4
  br label %63

63:
  %64 = phi i64 [ 0, %59 ], [ %126, %125 ]
  %65 = phi i64 [ %61, %59 ], [ %127, %125 ]
  %66 = load ptr, ptr %62, align 8
  %67 = getelementptr inbounds %struct.Operation, ptr %66, i64 %64
  %68 = load i64, ptr %67, align 8
  %69 = getelementptr inbounds %struct.Operation, ptr %66, i64 %64, i32 1
  %70 = load i64, ptr %69, align 8
  %71 = getelementptr inbounds i64, ptr %55, i64 %70
  %72 = load i64, ptr %71, align 8
  %73 = getelementptr inbounds %struct.Operation, ptr %66, i64 %64, i32 2
  %74 = load i64, ptr %73, align 8
  %75 = getelementptr inbounds i64, ptr %55, i64 %74
  %76 = load i64, ptr %75, align 8
  %77 = getelementptr inbounds i64, ptr %55, i64 %65
  switch i64 %68, label %273 [
    i64 0, label %78
    i64 1, label %80
    i64 2, label %82
    i64 3, label %84
    i64 4, label %98
    i64 5, label %111
    i64 6, label %113
  ]

78:
  %79 = tail call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %72, i64 %76)
  br label %115

80:
  %81 = tail call { i64, i1 } @llvm.ssub.with.overflow.i64(i64 %72, i64 %76)
  br label %115

82:
  %83 = tail call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %72, i64 %76)
  br label %115

84:
  %85 = icmp eq i64 %76, 0
  br i1 %85, label %273, label %86

86:
  %87 = sdiv i64 %72, %76
  %88 = srem i64 %72, %76
  %89 = icmp ne i64 %88, 0
  %90 = lshr i64 %72, 63
  %91 = trunc i64 %90 to i32
  %92 = lshr i64 %76, 63
  %93 = trunc i64 %92 to i32
  %94 = icmp ne i32 %91, %93
  %95 = and i1 %94, %89
  %96 = sext i1 %95 to i64
  %97 = add i64 %87, %96
  br label %119

98:
  %99 = icmp eq i64 %76, 0
  br i1 %99, label %273, label %100

100:
  %101 = srem i64 %72, %76
  store i64 %101, ptr %77, align 8
  %102 = icmp eq i64 %101, 0
  br i1 %102, label %125, label %103

103:
  %104 = lshr i64 %101, 63
  %105 = trunc i64 %104 to i32
  %106 = lshr i64 %76, 63
  %107 = trunc i64 %106 to i32
  %108 = icmp eq i32 %105, %107
  br i1 %108, label %121, label %109

109:
  %110 = add nsw i64 %101, %76
  br label %119

111:
  %112 = tail call i64 @llvm.smax.i64(i64 %72, i64 %76)
  br label %119

113:
  %114 = tail call i64 @llvm.smin.i64(i64 %72, i64 %76)
  br label %119

115:
  %116 = phi { i64, i1 } [ %79, %78 ], [ %81, %80 ], [ %83, %82 ]
  %117 = extractvalue { i64, i1 } %116, 0
  store i64 %117, ptr %77, align 8
  %118 = extractvalue { i64, i1 } %116, 1
  br i1 %118, label %273, label %121

119:
  %120 = phi i64 [ %110, %109 ], [ %97, %86 ], [ %112, %111 ], [ %114, %113 ]
  store i64 %120, ptr %77, align 8
  br label %121

121:
  %122 = phi i64 [ %101, %103 ], [ %117, %115 ], [ %120, %119 ]
  %123 = add i64 %122, -4611686018427387905
  %124 = icmp ult i64 %123, 9223372036854775807
  br i1 %124, label %273, label %125

125:
  %126 = add nuw nsw i64 %64, 1
  %127 = add nsw i64 %65, 1
  %128 = load i64, ptr %56, align 8
  %129 = icmp slt i64 %126, %128
  br i1 %129, label %63, label %130

130:
  %131 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 7
  %132 = load i64, ptr %131, align 8
  %133 = icmp sgt i64 %132, 0
  br i1 %133, label %134, label %245

134:
  %135 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 6
  %136 = load ptr, ptr %135, align 8
  br label %137

137:
  %138 = phi i64 [ 0, %134 ], [ %243, %242 ]
  %139 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138
  %140 = load i64, ptr %139, align 8
  br i1 %53, label %141, label %145

141:
  %142 = icmp eq i64 %140, 3
  br i1 %142, label %143, label %242

143:
  %144 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1
  br label %221

145:
  %146 = load ptr, ptr %5, align 8
  %147 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1
  switch i64 %140, label %273 [
    i64 0, label %148
    i64 1, label %171
    i64 2, label %184
    i64 3, label %221
    i64 4, label %231
  ]

148:
  %149 = load i64, ptr %147, align 8
  %150 = getelementptr inbounds i64, ptr %146, i64 %149
  %151 = load i64, ptr %150, align 8
  %152 = sext i64 %151 to i128
  %153 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 1
  %154 = load i64, ptr %153, align 8
  %155 = getelementptr inbounds i64, ptr %146, i64 %154
  %156 = load i64, ptr %155, align 8
  %157 = sext i64 %156 to i128
  %158 = add nsw i128 %157, %152
  %159 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 2
  %160 = load i64, ptr %159, align 8
  %161 = getelementptr inbounds i64, ptr %146, i64 %160
  %162 = load i64, ptr %161, align 8
  %163 = sext i64 %162 to i128
  %164 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 3
  %165 = load i64, ptr %164, align 8
  %166 = getelementptr inbounds i64, ptr %146, i64 %165
  %167 = load i64, ptr %166, align 8
  %168 = sext i64 %167 to i128
  %169 = add nsw i128 %168, %163
  %170 = icmp sgt i128 %158, %169
  br i1 %170, label %273, label %242

171:
  %172 = load i64, ptr %147, align 8
  %173 = getelementptr inbounds i64, ptr %146, i64 %172
  %174 = load i64, ptr %173, align 8
  %175 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 1
  %176 = load i64, ptr %175, align 8
  %177 = getelementptr inbounds i64, ptr %146, i64 %176
  %178 = load i64, ptr %177, align 8
  %179 = add i64 %178, %174
  %180 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 2
  %181 = load i64, ptr %180, align 8
  %182 = srem i64 %179, %181
  %183 = icmp eq i64 %182, 0
  br i1 %183, label %242, label %273

184:
  %185 = load i64, ptr %147, align 8
  %186 = getelementptr inbounds i64, ptr %146, i64 %185
  %187 = load i64, ptr %186, align 8
  %188 = sext i64 %187 to i128
  %189 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 1
  %190 = load i64, ptr %189, align 8
  %191 = getelementptr inbounds i64, ptr %146, i64 %190
  %192 = load i64, ptr %191, align 8
  %193 = sext i64 %192 to i128
  %194 = add nsw i128 %193, %188
  %195 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 2
  %196 = load i64, ptr %195, align 8
  %197 = getelementptr inbounds i64, ptr %146, i64 %196
  %198 = load i64, ptr %197, align 8
  %199 = sext i64 %198 to i128
  %200 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 3
  %201 = load i64, ptr %200, align 8
  %202 = getelementptr inbounds i64, ptr %146, i64 %201
  %203 = load i64, ptr %202, align 8
  %204 = sext i64 %203 to i128
  %205 = add nsw i128 %204, %199
  %206 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 4
  %207 = load i64, ptr %206, align 8
  %208 = getelementptr inbounds i64, ptr %146, i64 %207
  %209 = load i64, ptr %208, align 8
  %210 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 5
  %211 = load i64, ptr %210, align 8
  %212 = getelementptr inbounds i64, ptr %146, i64 %211
  %213 = load i64, ptr %212, align 8
  %214 = icmp slt i64 %209, 1
  %215 = icmp slt i64 %213, 1
  %216 = select i1 %214, i1 true, i1 %215
  br i1 %216, label %242, label %217

217:
  %218 = zext i64 %213 to i128
  %219 = add nsw i128 %205, %218
  %220 = icmp slt i128 %194, %219
  br i1 %220, label %238, label %242

221:
  %222 = phi ptr [ %144, %143 ], [ %147, %145 ]
  %223 = load i64, ptr %222, align 8
  %224 = inttoptr i64 %223 to ptr
  %225 = load i64, ptr %224, align 8
  %226 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 1
  %227 = load i64, ptr %226, align 8
  %228 = inttoptr i64 %227 to ptr
  %229 = load i64, ptr %228, align 8
  %230 = icmp eq i64 %225, %229
  br i1 %230, label %242, label %273

231:
  %232 = load i64, ptr %147, align 8
  %233 = getelementptr inbounds i64, ptr %146, i64 %232
  %234 = load i64, ptr %233, align 8
  %235 = getelementptr inbounds %struct.Rule, ptr %136, i64 %138, i32 1, i64 1
  %236 = load i64, ptr %235, align 8
  %237 = icmp sgt i64 %234, %236
  br i1 %237, label %273, label %242

238:
  %239 = zext i64 %209 to i128
  %240 = add nsw i128 %194, %239
  %241 = icmp slt i128 %205, %240
  br i1 %241, label %273, label %242

242:
  %243 = add nuw nsw i64 %138, 1
  %244 = icmp eq i64 %243, %132
  br i1 %244, label %245, label %137

245:
  %246 = load ptr, ptr %5, align 8
  %247 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 9
  br i1 %53, label %272, label %248

248:
  %249 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 8
  %250 = load i64, ptr %247, align 8
  %251 = icmp sgt i64 %250, 0
  br i1 %251, label %252, label %272

252:
  %253 = phi i64 [ %269, %252 ], [ 0, %248 ]
  %254 = load ptr, ptr %249, align 8
  %255 = getelementptr inbounds %struct.Patch, ptr %254, i64 %253
  %256 = getelementptr inbounds %struct.Patch, ptr %254, i64 %253, i32 1
  %257 = load i64, ptr %256, align 8
  %258 = getelementptr inbounds %struct.Patch, ptr %254, i64 %253, i32 2
  %259 = load i64, ptr %258, align 8
  %260 = getelementptr inbounds i64, ptr %246, i64 %259
  %261 = load i64, ptr %260, align 8
  %262 = add nsw i64 %261, %257
  %263 = getelementptr inbounds %struct.Patch, ptr %254, i64 %253, i32 3
  %264 = load i64, ptr %263, align 8
  %265 = getelementptr inbounds i64, ptr %246, i64 %264
  %266 = load i64, ptr %265, align 8
  %267 = add nsw i64 %262, %266
  %268 = load ptr, ptr %255, align 8
  store i64 %267, ptr %268, align 8
  %269 = add nuw nsw i64 %253, 1
  %270 = load i64, ptr %247, align 8
  %271 = icmp slt i64 %269, %270
  br i1 %271, label %252, label %272

272:
  store i64 1, ptr %6, align 8
  br label %288

273:
  store i64 0, ptr %6, align 8
  %274 = load ptr, ptr %10, align 8
  store i32 1, ptr %274, align 4
  %275 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 10
  %276 = load i64, ptr %275, align 8
  %277 = icmp sgt i64 %276, 0
  br i1 %277, label %278, label %288

278:
  %279 = getelementptr inbounds %struct.Resize, ptr %5, i64 0, i32 8
  br label %280

280:
  %281 = phi i64 [ 0, %278 ], [ %285, %280 ]
  %282 = load ptr, ptr %279, align 8
  %283 = getelementptr inbounds %struct.Patch, ptr %282, i64 %281
  %284 = load ptr, ptr %283, align 8
  store i64 0, ptr %284, align 8
  %285 = add nuw nsw i64 %281, 1
  %286 = load i64, ptr %275, align 8
  %287 = icmp slt i64 %285, %286
  br i1 %287, label %280, label %288

288:
  ret void
}

declare i64 @syscall(i64 noundef, ...) local_unnamed_addr

declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr

declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64) #6

declare { i64, i1 } @llvm.ssub.with.overflow.i64(i64, i64) #6

declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64) #6

declare i32 @llvm.umin.i32(i32, i32) #7

declare i64 @llvm.smin.i64(i64, i64) #7

declare i64 @llvm.smax.i64(i64, i64) #7

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(none) }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write) }
attributes #2 = { nounwind }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #4 = { nofree nosync nounwind memory(readwrite, inaccessiblemem: none) }
attributes #6 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #7 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #8 = { nobuiltin }
attributes #9 = { nounwind }
attributes #10 = { nobuiltin nounwind }
